"""Find the tile of the kernel that works on pairs on this GPU: candidates in turns, beside the committed tile.

    python benchmarks/pairs_tiles.py [--roundings sr rne] [--out tiles.json] [--workers 8]

What is timed is the quantising pass of both operands of a BF16 tensor, as `repro bench --rows 'pair/nvfp4/*'` times
it (rows as they are, columns transformed by 16, amax given). Every candidate computes the same bits;
repro/numerics/gpu/tiles.py holds the choice (`PAIRS_TILES`). `ratio` is the share of the copy rate of this run.
Candidates are compiled by `--workers` processes first.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from repro.bench.machine import FULL, Machine, Prepared
from repro.bench.options import check_gpu
from repro.bench.pass_kinds import kinds
from repro.bench.passes import Passes
from repro.bench.report import results_file
from repro.numerics.gpu import tiles
from repro.numerics.gpu.tiles import Tile
from repro.options import OneLineParser, whole_number
from repro.portable import provenance

#: (columns, warps, neighbouring elements of a thread, most registers); the rows are those of the transform.
CANDIDATES = (
    (512, 4, 4, None), (512, 4, 4, 128), (512, 4, 4, 144), (256, 2, 4, 128), (256, 2, 4, 144), (1024, 8, 4, None),
    (256, 2, 8, None), (256, 2, 8, 128), (512, 4, 8, None), (512, 4, 8, 128), (1024, 8, 8, None),
)  # fmt: skip


def candidates(rounding: str) -> list[Tile]:
    """The committed tile, then the others."""
    committed = tiles.PAIRS_TILES[16, 2, rounding == "sr"]
    others = [Tile(16, columns, warps, vector, most) for columns, warps, vector, most in CANDIDATES]
    return [committed, *(tile for tile in others if tile != committed)]


class Bench:
    """The pass of one rounding."""

    def __init__(self, machine: Machine, rounding: str) -> None:
        self.machine, self.rounding = machine, rounding
        self.passes = Passes(machine, machine.matrix_size)
        self.kind = next(kind for kind in kinds() if kind.name == f"pair/nvfp4/{rounding}")

    def prepare(self, tile: Tile) -> tuple[Prepared, int]:
        """With this tile, compiled; and the bytes a value that it must move."""
        tiles.PAIRS_TILES[16, 2, self.rounding == "sr"] = tile
        call, bytes_per_value = self.passes.quantising_call(self.kind)
        return self.machine.prepare(call), bytes_per_value

    def time_all(self) -> list[dict[str, Any]]:
        found = candidates(self.rounding)
        prepared, (bytes_per_value, *_) = zip(*map(self.prepare, found), strict=True)
        floor = bytes_per_value * self.machine.matrix_size**2 / self.machine.copy_rate
        return [
            {
                "rounding": self.rounding,
                **asdict(tile),
                "microseconds": round(seconds * 1e6, 2),
                "ratio": floor / seconds,
            }
            for tile, seconds in zip(found, self.machine.seconds_in_turn(*prepared), strict=True)
        ]


def compile_all(roundings: list[str], workers: int) -> None:
    running = [
        subprocess.Popen([sys.executable, __file__, "--roundings", *roundings, "--compile", f"{i}/{workers}"])
        for i in range(workers)
    ]
    for process in running:
        process.wait()


def parse(words: list[str]) -> argparse.Namespace:
    """The options, checked; what is wrong ends the process in one line, before anything is measured."""
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument("--roundings", nargs="+", choices=("sr", "rne"), default=["sr", "rne"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=whole_number(), default=8)
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    with parser.telling():
        check_gpu("tiles of a kernel")
        options.out = results_file(options.out)
    return options


def main() -> int:
    options = parse(sys.argv[1:])
    benches = [Bench(Machine(torch.device("cuda"), effort=FULL), name) for name in options.roundings]
    if options.compile:
        number, step = map(int, options.compile.split("/"))
        for bench in benches:
            for tile in candidates(bench.rounding)[number::step]:
                bench.prepare(tile)
        return 0
    compile_all(options.roundings, options.workers)
    rows = [row for bench in benches for row in bench.time_all()]
    for row in rows:
        print("{rounding:3} {rows}x{columns:<4} warps {num_warps} vector {vector} registers {max_registers!s:4} "
              "{microseconds:6.1f} us {ratio:.3f}".format(**row))  # fmt: skip
    if options.out:
        content = {
            **provenance.describe(torch.device("cuda")),
            "size": benches[0].machine.matrix_size,
            "rows": rows,
        }
        options.out.write(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
