"""Time other packages' quantisers beside this project's, and compare their results with TE's arithmetic.

    python benchmarks/quantize_peers.py [--device cuda] [--full] [--rows PATTERN] [--json FILE]

One tensor (8192x8192 BF16 on a GPU, 4096x4096 on a CPU), quantised and dequantised, the amax of the tensor included;
`floor` is this project's fused kernel doing the same job, `ratio` how many times as long the package takes. Calls
run four in a row without a CUDA graph, because some packages wait for the device inside. Ours leaves the tensor scale
apart on a GPU, as a GEMM takes it; `quantise_seconds` in the details is the way to packed codes alone, ours too.

Peers are an extra of the project (`pip install .[bench]`) and no dependency of it. Recorded results are of torchao
0.18.0, fouroversix 1.0.5, nvidia-modelopt 0.47.0, compressed-tensors 0.20.1, transformer_engine 2.20.2 (the Python
reference alone: one file, no compiled part). One that is not there, or refuses this machine, says so in its row.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import torch
from peer_adapters import PEERS, Peer, Prepared
from peer_agreement import compare, samples, spec_of
from torch import Tensor

from repro.bench.__main__ import describe, run_cases
from repro.bench.machine import FULL, SHORT, Machine
from repro.bench.options import device_named
from repro.bench.report import results_file
from repro.bench.rows import Case, Measurement, MissingError, Target, choose, first_line
from repro.numerics.cpu import fake_quantize_cpu
from repro.numerics.operand import make_operand
from repro.numerics.packing import make_packed
from repro.options import OneLineParser

SEED = 0x123456789ABCDEF
LEGEND = (
    "floor: this project's fused kernel doing the same job; ratio: how many times as long the package takes"
)
#: How many times as long a package takes on a CPU at least, run eagerly.
CPU_TARGET = Target(">=", 10.0)


class Contest:
    """The tensor, and the times of this project's kernels for each job."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.x = machine.randn(machine.matrix_size, machine.matrix_size)
        self._ours: dict[str, tuple[float, float]] = {}

    def cases(self) -> list[Case]:
        jobs = list(dict.fromkeys(peer.job for peer in PEERS))
        found = []
        for job in jobs:
            found.append(Case(f"{job}/ours", "this project's kernel", lambda job=job: self.own(job)))
            found += [
                Case(
                    f"{job}/{peer.name}",
                    peer.package,
                    lambda peer=peer: self.measure(peer),
                    None if self.machine.is_gpu or peer.variant == "compiled" else CPU_TARGET,
                )
                for peer in PEERS
                if peer.job == job
            ]
        return found

    def own(self, job: str) -> Measurement:
        seconds, quantising = self.ours(job)
        bytes_moved = 3 * self.x.nbytes if job.startswith("nvfp4") else 2 * self.x.nbytes
        return Measurement(
            measured=seconds,
            floor=bytes_moved / self.machine.copy_rate,
            floor_from="bytes at the copy rate; ratio: times as long",
            ratio=seconds * self.machine.copy_rate / bytes_moved,
            details={"quantise_seconds": quantising},
        )

    def ours(self, job: str) -> tuple[float, float]:
        """Seconds of quantise + dequantise, and of quantising to packed codes."""
        if job not in self._ours:
            rounding = job.rpartition("/")[2]
            spec, seed = spec_of(job, rounding=rounding), SEED if rounding == "sr" else None
            if self.machine.is_gpu:
                whole = lambda x: make_operand(x, spec, along=1, seed=seed)  # noqa: E731
            else:
                whole = lambda x: fake_quantize_cpu(x, spec, seed=seed)  # noqa: E731
            self._ours[job] = (
                self.time(whole),
                self.time(lambda x: make_packed(x, spec, along=1, seed=seed)),
            )
        return self._ours[job]

    def time(self, call: Callable[[Tensor], object]) -> float:
        return self.machine.eager_seconds(lambda _: call(self.x))

    def measure(self, peer: Peer) -> Measurement:
        if peer.needs_gpu and not self.machine.is_gpu:
            raise MissingError("needs a GPU")
        prepared, version = prepare(peer, self.x[:256, :256].contiguous())
        agreement = compare(prepared, peer.job, samples(self.machine.device))
        floor, own_quantising = self.ours(peer.job)
        seconds = self.time(prepared.round_trip)
        quantising = self.time(prepared.quantise)
        notes = [f"version {version}", str(agreement["verdict"]), peer.known]
        return Measurement(
            measured=seconds,
            floor=floor,
            floor_from="this project's kernel",
            ratio=seconds / floor,
            note="; ".join(note for note in notes if note),
            details={
                "version": version,
                "quantise_seconds": quantising,
                "quantise_over_ours": quantising / own_quantising,
                "agreement": agreement,
            },
        )


def prepare(peer: Peer, probe: Tensor) -> tuple[Prepared, str]:
    """Imports the package and tries it. Whatever it throws is its result here."""
    try:
        version = metadata.version(peer.package)
    except metadata.PackageNotFoundError:
        raise MissingError(f"not installed: {peer.package}") from None
    try:
        prepared = peer.prepare()
        prepared.round_trip(probe)
    except ImportError as error:
        raise MissingError(f"version {version} needs {error.name or error}") from error
    except Exception as error:
        raise MissingError(f"version {version} fails: {type(error).__name__}: {first_line(error)}") from error
    return prepared, version


def main() -> int:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", nargs="+", default=[], metavar="PATTERN")
    parser.add_argument("--full", action="store_true", help="medians of many")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # other packages' notes on what else they could use
    with parser.telling():
        machine = Machine(device_named(options.device), effort=FULL if options.full else SHORT)
        kept = results_file(options.json)
        cases = choose(Contest(machine).cases(), options.rows, is_full=True)
    return run_cases(cases, machine, describe(machine, is_full=options.full), kept, legend=LEGEND)


if __name__ == "__main__":
    sys.exit(main())
