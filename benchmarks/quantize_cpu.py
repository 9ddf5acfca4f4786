"""Time quantise + dequantise of a BF16 matrix on the CPU: the fused kernel, PyTorch eager, and other packages.

    python benchmarks/quantize_cpu.py [--size 4096] [--threads 2] [--rounds 15] [--out results.json]

All contestants run in one process, in turns, on one tensor [size, size] of normal values; the amax of the tensor
is part of the job. The yardstick is `x.clone()`, which moves each byte once in and once out. Targets: the fused
kernel takes at most 4 clones for nvfp4 1x16, and the best eager package at least 10 times as long as it.

Columns: median and minimum of the rounds; the median as a multiple of clone's, and of the fused kernel's for the
same job; whether the result equals Transformer Engine's arithmetic (NVFP4: >= 2.14; the PyTorch reference of
repro.numerics, which its golden vectors pin) in every bit, in every value, or which share of values differs,
over 16 smaller tensors of other magnitudes.
Peers are an extra (`pip install .[bench]`); one that is not there is listed with the reason.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch
from quantize_peers import PEERS
from torch import Tensor

from repro.numerics.cpu import binding, fake_quantize_cpu, make_operand_cpu
from repro.numerics.cpu.binding import fake_quantize_reference
from repro.numerics.formats import NVFP4, QuantSpec, block_format
from repro.numerics.hadamard import sign_vector

JOBS = ("nvfp4 1x16", "nvfp4 16x16", "mxfp4 1x32", "fp8_block 1x128", "fp8_block 128x128")
#: A contestant slower than this is run in the first rounds only.
SLOW_SECONDS, SLOW_ROUNDS = 0.25, 3
CLONE_TARGET, PEER_TARGET = 4.0, 10.0


@dataclass
class Contestant:
    """One function to time."""

    name: str
    job: str
    run: Callable[[Tensor], Tensor] | None
    version: str = ""
    #: Why it does not run; empty if it does.
    failure: str = ""
    agreement: str = ""
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def spec_of(job: str, rounding: str = "rne") -> QuantSpec:
    name, tile = job.split()
    rows, columns = tile.split("x")
    return QuantSpec(block_format(name), (int(rows), int(columns)), rounding=rounding)


def samples() -> list[Tensor]:
    """Tensors for the comparison: BF16 [256, 1024], each of another amax, half of them heavy-tailed."""
    generator = torch.Generator().manual_seed(1)
    tensors = []
    for number in range(16):
        x = torch.randn(256, 1024, generator=generator)
        x = x * x.abs() if number % 2 else x
        tensors.append((x * 3.0 ** (number - 8)).bfloat16())
    return tensors


def agreement(row: Contestant, tensors: list[Tensor]) -> str:
    """Comparison with Transformer Engine's arithmetic, rounded to BF16 once."""
    num_bits = num_values = num_all = 0
    for x in tensors:
        ours, expected = row.run(x), fake_quantize_reference(x, spec_of(row.job))
        if ours.shape != expected.shape or ours.dtype != expected.dtype:
            return f"other shape or dtype: {tuple(ours.shape)} {ours.dtype}"
        num_bits += int((ours.view(torch.int16) != expected.view(torch.int16)).sum())
        num_values += int((ours != expected).sum())
        num_all += x.numel()
    if num_values:
        return f"{num_values / num_all:.2%} of values differ"
    return f"same values ({num_bits / num_all:.2%} signs of zeros differ)" if num_bits else "same bits"


def own_contestants() -> list[Contestant]:
    version = f"kernel of this commit, torch {torch.__version__}"
    rows = [Contestant("clone", "clone", torch.clone, version)]
    for job in JOBS:
        spec = spec_of(job)
        rows.append(Contestant("fused kernel", job, lambda x, spec=spec: fake_quantize_cpu(x, spec), version))
        rows.append(
            Contestant("PyTorch eager", job, lambda x, spec=spec: fake_quantize_reference(x, spec), version)
        )
    return rows


def training_contestants() -> list[Contestant]:
    """What training asks for besides: stochastic rounding, and operands after the Hadamard transform."""
    signs = sign_vector(16, kind="fixed")
    rne, stochastic = QuantSpec(NVFP4, (1, 16)), spec_of("nvfp4 1x16", "sr")

    def operand(x: Tensor, spec: QuantSpec, seed: int | None) -> Tensor:
        return make_operand_cpu(
            x, spec, along=0, hadamard=16, signs=signs, seed=seed, dtype=torch.bfloat16
        ).values

    return [
        Contestant("fused kernel", "nvfp4 1x16 sr", lambda x: fake_quantize_cpu(x, stochastic, seed=1)),
        Contestant("fused kernel", "operand, down the rows, hadamard 16", lambda x: operand(x, rne, None)),
        Contestant("fused kernel", "the same with sr", lambda x: operand(x, stochastic, 1)),
    ]


def peer_contestants(probe: Tensor) -> list[Contestant]:
    rows = []
    for peer in PEERS:
        row = Contestant(peer.package, peer.job, None)
        try:
            row.version = metadata.version(peer.package)
            row.run = peer.prepare()
            row.run(probe)
        except metadata.PackageNotFoundError:
            row.failure = "not installed"
        except Exception as error:  # whatever another package throws is its result here
            row.run, row.failure = None, f"failed: {type(error).__name__}: {str(error).splitlines()[0][:150]}"
        rows.append(row)
    return rows


def measure(rows: list[Contestant], x: Tensor, rounds: int) -> None:
    tensors = samples()
    for row in rows:  # warm-up, and the comparison with Transformer Engine's arithmetic
        started = time.perf_counter()
        row.run(x)
        seconds = time.perf_counter() - started
        if row.job in JOBS:
            row.agreement = agreement(row, tensors)
        print(f"warm-up: {row.name}, {row.job}: {seconds * 1e3:.1f} ms", file=sys.stderr)
    for number in range(rounds):
        for row in rows:
            if number >= SLOW_ROUNDS and row.median > SLOW_SECONDS:
                continue
            started = time.perf_counter()
            row.run(x)
            row.seconds.append(time.perf_counter() - started)


def table(rows: list[Contestant]) -> list[dict[str, object]]:
    clone = next(row for row in rows if row.name == "clone")
    fused = {row.job: row.median for row in rows if row.name == "fused kernel" and row.seconds}
    lines = []
    for row in rows:
        line: dict[str, object] = {"name": row.name, "job": row.job, "version": row.version}
        if row.seconds:
            line |= {
                "median_ms": row.median * 1e3,
                "min_ms": min(row.seconds) * 1e3,
                "times_clone": row.median / clone.median,
                "times_clone_of_minima": min(row.seconds) / min(clone.seconds),
                "times_fused": row.median / fused[row.job] if row.job in fused else None,
                "num_rounds": len(row.seconds),
                "agreement": row.agreement,
            }
        else:
            line["failure"] = row.failure
        lines.append(line)
    return lines


def small_operand_us(repeats: int = 3000) -> dict[str, dict[str, float]]:
    """Microseconds a call, one thread, for FP32 [256, 64] as in the smallest models."""
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(1))
    signs = sign_vector(16, kind="fixed")
    rne, square, stochastic = spec_of("nvfp4 1x16"), spec_of("nvfp4 16x16"), spec_of("nvfp4 1x16", "sr")
    calls: dict[str, Callable[[], object]] = {
        "1x16 along the columns": lambda: make_operand_cpu(x, rne, along=1),
        "16x16": lambda: make_operand_cpu(x, square, along=1),
        "1x16 down the rows": lambda: make_operand_cpu(x, rne, along=0),
        "1x16 down the rows, hadamard 16": lambda: make_operand_cpu(
            x, rne, along=0, hadamard=16, signs=signs
        ),
        "1x16 down the rows, sr": lambda: make_operand_cpu(x, stochastic, along=0, seed=1),
    }
    result = {}
    for name, call in calls.items():
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - started)
        result[name] = {"median_us": statistics.median(seconds) * 1e6, "min_us": min(seconds) * 1e6}
    return result


def verdicts(lines: list[dict[str, object]]) -> dict[str, object]:
    """The two targets, by medians, on nvfp4 1x16."""
    mine = next(line for line in lines if (line["name"], line["job"]) == ("fused kernel", "nvfp4 1x16"))
    packages = {peer.package for peer in PEERS}
    peers = [
        line
        for line in lines
        if line["name"] in packages and line["job"] == "nvfp4 1x16" and "median_ms" in line
    ]
    best = min(peers, key=lambda line: line["median_ms"], default=None)
    return {
        "times_clone": mine["times_clone"],
        "within_clone_target": mine["times_clone"] <= CLONE_TARGET,
        "best_peer": best and best["name"],
        "best_peer_times_fused": best and best["times_fused"],
        "peer_target_met": best and best["times_fused"] >= PEER_TARGET,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def print_table(lines: list[dict[str, object]]) -> None:
    print(f"{'':19}{'job':36}{'median ms':>10}{'min ms':>9}{'x clone':>9}{'x fused':>9}  agreement")
    for line in lines:
        label = f"{line['name']:19}{line['job']:36}"
        if "failure" in line:
            print(f"{label}  {line['failure']}")
            continue
        ratio = "" if line["times_fused"] is None else f"{line['times_fused']:.2f}"
        print(
            f"{label}{line['median_ms']:10.1f}{line['min_ms']:9.1f}{line['times_clone']:9.2f}{ratio:>9}"
            f"  {line['agreement']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the matrix")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    today = datetime.date.today().isoformat()
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / f"quantize_cpu_{today}.json"
    )
    arguments = parser.parse_args()
    if binding.kernel() is None:
        sys.exit("the fused kernel cannot be used here (reason above); nothing to compare")
    warnings.filterwarnings("ignore")  # other packages' notes on what else they could use

    torch.set_num_threads(1)
    small = small_operand_us()
    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(arguments.size, arguments.size, generator=generator).bfloat16()
    rows = own_contestants() + training_contestants() + peer_contestants(x[:256, :256].contiguous())
    measure([row for row in rows if row.run is not None], x, arguments.rounds)
    lines = table(rows)

    print_table(lines)
    result = verdicts(lines)
    print(
        f"\nnvfp4 1x16: {result['times_clone']:.2f} times clone (target: at most {CLONE_TARGET:g}); "
        f"best peer {result['best_peer']}"
        + (f" takes {result['best_peer_times_fused']:.1f} times as long" if result["best_peer"] else "")
        + f" (target: at least {PEER_TARGET:g})"
    )
    print("one thread, FP32 [256, 64], one call in microseconds (median, minimum):")
    for name, value in small.items():
        print(f"  {name:34}{value['median_us']:7.1f}{value['min_us']:7.1f}")
    record = {
        "date": today,
        "processor": processor(),
        "threads": arguments.threads,
        "shape": [arguments.size, arguments.size],
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "targets": result,
        "table": lines,
        "small_operand_us": small,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
