"""Clock and power of the GPU while a layer and its BF16 products run: what decides how the two compare.

    python benchmarks/layer_clocks.py [--shapes 8192x5120x20480 ...] [--seconds 4] [--out clocks.json]

Phases of `--seconds` each, of which the second half counts: the three BF16 products on normal numbers; the same
products on NVFP4 operands (code value x block scale, the numbers that the layer multiplies); the layer of
configs/recipes/nvfp4.yaml forward and backward; layer and products call by call in turn. A phase tells the median
time of one call, the median clock and power that `nvidia-smi` reports meanwhile, and the share of its reports that
name the power limit as what holds the clock down.

Does not: set clocks or limits, or tell the clocks of two calls that take turns apart.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from repro.bench.layers import GPU_SHAPES, Bf16Products, Layers
from repro.bench.machine import Effort, Machine, Prepared
from repro.bench.options import check_gpu
from repro.bench.report import results_file
from repro.numerics import NVFP4, QuantSpec, make_operand
from repro.options import OneLineParser, amount
from repro.portable import provenance

#: nvidia-smi's names; the last two say Active or Not Active.
FIELDS = (
    "clocks.sm",
    "power.draw.instant",
    "enforced.power.limit",
    "clocks_event_reasons.sw_power_cap",
    "clocks_event_reasons.sw_thermal_slowdown",
)


class Watch:
    """nvidia-smi's reports on one GPU, 50 a second, with the time at which each was read."""

    def __init__(self, uuid: str) -> None:
        command = [
            "nvidia-smi",
            f"--query-gpu={','.join(FIELDS)}",
            "--format=csv,noheader,nounits",
            "-lms",
            "20",
        ]
        self._process = subprocess.Popen([*command, "-i", uuid], stdout=subprocess.PIPE, text=True)
        self._reports: list[tuple[float, list[str]]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._reports.append((time.monotonic(), [word.strip() for word in line.split(",")]))

    def between(self, start: float, end: float) -> dict[str, Any]:
        """Medians over the reports read between two times of time.monotonic, and shares of them.

        Raises RuntimeError when nvidia-smi reported nothing, or words where a number belongs.
        """
        words = [words for when, words in self._reports if start <= when < end]
        if not words:
            raise RuntimeError(
                f"nvidia-smi reported nothing within {end - start:.1f} s; does it know {FIELDS}?"
            )
        try:
            clock, power, limit = (statistics.median(float(one[i]) for one in words) for i in range(3))
        except ValueError:
            raise RuntimeError(f"nvidia-smi reports {words[0]} for {FIELDS}") from None
        capped, thermal = (sum(one[i] == "Active" for one in words) / len(words) for i in (3, 4))
        return {
            "reports": len(words),
            "clock_mhz": clock,
            "power_watts": power,
            "power_limit_watts": limit,
            "share_power_limited": capped,
            "share_thermally_limited": thermal,
        }

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def phases(machine: Machine, shape: tuple[int, int, int]) -> dict[str, list[Prepared]]:
    """What runs in each phase; the calls of a list take turns."""
    layers = Layers(machine)
    x, grad, weight = layers.tensors(shape)
    spec = QuantSpec(NVFP4, (1, 16))
    x4, w4, grad4 = (make_operand(one.detach(), spec, along=1).values.bfloat16() for one in (x, weight, grad))
    x4.requires_grad_()
    w4.requires_grad_()
    products = layers.floor(shape)[1]
    layer = machine.prepare(layers.step_of("nvfp4", shape)[0])
    on_operands = machine.prepare(lambda _: torch.autograd.grad(Bf16Products.apply(x4, w4), (x4, w4), grad4))
    return {
        "products of normal numbers": [products],
        "products of NVFP4 operands": [on_operands],
        "NVFP4 layer": [layer],
        "NVFP4 layer and products in turn": [layer, products],
    }


def measure(machine: Machine, watch: Watch, name: str, turns: list[Prepared]) -> dict[str, Any]:
    """One phase: milliseconds of one call of each, by its second half."""
    machine.seconds_in_turn(*turns)
    half = time.monotonic()
    times = machine.seconds_in_turn(*turns)
    return {
        "phase": name,
        "milliseconds": [1e3 * one for one in times],
        **watch.between(half, time.monotonic()),
    }


def line(row: dict[str, Any]) -> str:
    times = " and ".join(f"{one:.3f}" for one in row["milliseconds"])
    return (
        f"{row['phase']:34} {times:>15} ms  {row['clock_mhz']:5.0f} MHz  {row['power_watts']:4.0f} W of "
        f"{row['power_limit_watts']:.0f}  power-limited in {row['share_power_limited']:4.0%} of "
        f"{row['reports']} reports"
    )


def parse(words: list[str]) -> argparse.Namespace:
    """The options, checked; what is wrong ends the process in one line, before anything is measured."""
    parser = OneLineParser(description=__doc__.splitlines()[0])
    names = {"x".join(map(str, shape)): shape for shape in GPU_SHAPES}
    parser.add_argument("--shapes", nargs="+", choices=names, default=list(names), help="of `repro bench`")
    parser.add_argument("--seconds", type=amount("seconds"), default=4.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    options.shapes = [names[name] for name in options.shapes]
    with parser.telling():
        check_gpu("clocks")
        if shutil.which("nvidia-smi") is None:
            raise ValueError("no nvidia-smi here, which reads the clocks")
        options.out = results_file(options.out)
    return options


def main() -> int:
    options = parse(sys.argv[1:])
    half = Effort(options.seconds / 2, min_repeats=1, max_repeats=sys.maxsize)
    machine = Machine(torch.device("cuda"), effort=half)
    watch = Watch(f"GPU-{torch.cuda.get_device_properties(machine.device).uuid}")
    layers: list[dict[str, Any]] = []
    try:
        for shape in options.shapes:
            print("layer {}x{}x{}".format(*shape))
            layers.append({"shape": shape, "phases": []})
            for name, turns in phases(machine, shape).items():
                layers[-1]["phases"].append(measure(machine, watch, name, turns))
                print(line(layers[-1]["phases"][-1]), flush=True)
    finally:
        watch.close()
    if options.out:
        options.out.write({**provenance.describe(machine.device), "layers": layers})
    return 0


if __name__ == "__main__":
    sys.exit(main())
