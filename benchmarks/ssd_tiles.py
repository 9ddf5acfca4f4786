"""Find tiles for mamba_ssm's scan kernels on this GPU: every candidate of every kernel, timed in one run.

    python benchmarks/ssd_tiles.py [--out tiles.json] [--workers 12]

Repeatable training forbids the kernels' own choice by timing: it may differ from start to start, and with it the
bits. In deterministic mode mamba_ssm takes the smallest tile of each kernel instead, which is not the fastest. This
prints, per kernel and shape of the proxy models, the time of the smallest tile and of the best one;
repro/models/ssd_launch.py holds the choice. Candidates are compiled by `--workers` processes first.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from repro.bench.options import check_gpu
from repro.bench.report import results_file
from repro.models.ssd_launch import MODULES
from repro.options import OneLineParser, whole_number
from repro.portable import provenance

#: (heads, features of a head): the 8B and the 12B proxy; both have 8 groups, states of 128, chunks of 128.
SHAPES = ((32, 32), (32, 48))
GROUPS, STATE, CHUNK, TOKENS = 8, 128, 128, 1024


def kernels() -> dict[str, Any]:
    """Triton's autotuners by name, with all their candidates. To be called before mamba_ssm's first import."""
    os.environ["MAMBA_DETERMINISTIC"] = "0"
    from mamba_ssm.ops.triton import ssd_combined  # noqa: F401 - imports the others

    os.environ["MAMBA_DETERMINISTIC"] = "1"
    return {
        name: getattr(importlib.import_module(f"mamba_ssm.ops.triton.{module}"), name)
        for name, module in MODULES.items()
    }


def scan(heads: int, features: int, batch: int) -> None:
    """One forward and backward pass on BF16 inputs with the strides that the model gives."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    generator = torch.Generator("cuda").manual_seed(0)
    inner, grouped = heads * features, GROUPS * STATE

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    xBC = normal(batch, TOKENS, inner + 2 * grouped).bfloat16().requires_grad_()
    x, B, C = xBC.split((inner, grouped, grouped), dim=-1)
    projected = normal(batch, TOKENS, 2 * inner + 2 * grouped + heads).bfloat16().requires_grad_()
    y = mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, features)),
        projected[..., -heads:],
        -normal(heads).exp(),
        B.unflatten(-1, (GROUPS, STATE)),
        C.unflatten(-1, (GROUPS, STATE)),
        CHUNK,
        D=normal(heads),
        dt_bias=normal(heads),
        dt_softplus=True,
    )
    y.backward(normal(*y.shape).bfloat16())
    torch.cuda.synchronize()


def smallest(configs: list[Any]) -> Any:
    """What mamba_ssm takes in deterministic mode."""
    from mamba_ssm.utils.determinism import _estimate_config_cost

    return min(configs, key=_estimate_config_cost)


def compile_candidate(number: int) -> None:
    """Compiles candidate `number` of every kernel that has so many, into Triton's cache."""
    for kernel in kernels().values():
        kernel.configs = [kernel.configs[min(number, len(kernel.configs) - 1)]]
    for heads, features in SHAPES:
        scan(heads, features, batch=16)


def compile_all(workers: int) -> None:
    running = [
        subprocess.Popen([sys.executable, __file__, "--compile", str(number)], stderr=subprocess.DEVNULL)
        for number in range(workers)
    ]
    for process in running:
        process.wait()


def in_short(config: Any) -> str:
    """A candidate as text, without what all candidates share."""
    return re.sub(r"BLOCK_SIZE_|, num_ctas: 1|, maxnreg: None", "", str(config))


def time_all(batch: int) -> list[dict[str, Any]]:
    """Milliseconds of every candidate: the kernels choose by timing, and their timings are read off."""
    import triton

    rows = []
    found = kernels()
    for kernel in found.values():
        kernel.do_bench = functools.partial(triton.testing.do_bench, warmup=3, rep=20)
    for heads, features in SHAPES:
        for kernel in found.values():
            kernel.cache.clear()
        scan(heads, features, batch)
        for name, kernel in found.items():
            timings = {in_short(config): values[0] for config, values in kernel.configs_timings.items()}
            ordered = dict(sorted(timings.items(), key=lambda item: item[1]))
            default = in_short(smallest(kernel.configs))
            rows.append({"features": features, "kernel": name, "smallest": default, "milliseconds": ordered})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    totals: dict[int, list[float]] = {}
    for row in rows:
        best, *_ = row["milliseconds"]
        pair = row["milliseconds"][row["smallest"]], row["milliseconds"][best]
        print(f"{row['features']:3d} {row['kernel']:40} {pair[0]:7.3f} -> {pair[1]:7.3f} ms  {best}")
        total = totals.setdefault(row["features"], [0.0, 0.0])
        total[0], total[1] = total[0] + pair[0], total[1] + pair[1]
    for features, (default, best_total) in totals.items():
        print(
            f"heads of {features}: {default:.2f} ms a layer with the smallest tiles, {best_total:.2f} with the best"
        )


def parse(words: list[str]) -> argparse.Namespace:
    """The options, checked; what is wrong ends the process in one line, before anything is measured."""
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--workers", type=whole_number(), default=12)
    parser.add_argument("--batch", type=whole_number(), default=32, help="sequences of 1024 tokens")
    parser.add_argument("--compile", type=whole_number(0), default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    with parser.telling():
        if importlib.util.find_spec("mamba_ssm") is None:
            raise ValueError("needs mamba_ssm, whose kernels it times (docs/campaign.md installs it)")
        check_gpu("tiles of a kernel")
        options.out = results_file(options.out)
    return options


def main() -> int:
    options = parse(sys.argv[1:])
    if options.compile is not None:
        compile_candidate(options.compile)
        return 0
    compile_all(options.workers)
    rows = time_all(options.batch)
    show(rows)
    if options.out:
        content = {**provenance.describe(torch.device("cuda")), "sequences": options.batch, "kernels": rows}
        options.out.write(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
