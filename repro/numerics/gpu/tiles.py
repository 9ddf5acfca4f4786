"""How each kernel cuts a tensor up: tiles, which copies fit one together, and how many programs run.

A tile holds whole blocks and whole groups of a transform of every copy that is made from it. For the sizes that
recipes ask for, the tiles are those that were fastest on an H200; other sizes get one of a usual size.

Does not: choose the kernel or launch it (`passes.py`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from repro.numerics.gpu.arithmetic import TWO_LEVEL_TE, Copy

#: Largest tile of `quantise_kernel` in elements: more does not fit the registers.
_MAX_TILE = 16384
#: Most rows of a tile of `quantise_pairs_kernel`.
MAX_PAIRS_ROWS = 16
#: Programs of the amax pass per multiprocessor.
AMAX_PROGRAMS = 3


@dataclass(frozen=True)
class Tile:
    """How a kernel cuts a tensor up."""

    rows: int
    columns: int
    num_warps: int
    #: Neighbouring elements that one thread holds.
    vector: int = 8
    #: Most registers of a thread; None leaves it to the compiler.
    max_registers: int | None = None

    @property
    def constants(self) -> dict[str, int]:
        """Its compile-time constants, in the order in which the kernels take them."""
        return {"ROWS": self.rows, "COLUMNS": self.columns, "VECTOR": self.vector}

    def count(self, num_rows: int, num_columns: int) -> int:
        """How many of them cover a tensor."""
        return -(-num_rows // self.rows) * -(-num_columns // self.columns)

    def divides(self, num_rows: int, num_columns: int) -> bool:
        """Whether none reaches beyond the tensor's edges."""
        return num_rows % self.rows == 0 and num_columns % self.columns == 0


#: Measured on an H200, for BF16 input: (rows that a tile needs, copies, stochastic) -> tile; 0 copies: amax pass.
TILES = {
    (1, 0, False): Tile(8, 1024, 4),
    (16, 0, False): Tile(16, 1024, 4),
    (1, 1, False): Tile(4, 1024, 4),
    (1, 1, True): Tile(8, 256, 1),
    (16, 1, False): Tile(16, 128, 1, vector=4),
    (16, 1, True): Tile(16, 256, 2, vector=4),
    (16, 2, False): Tile(16, 256, 4),
    (16, 2, True): Tile(16, 256, 4),
    (32, 2, False): Tile(32, 128, 4),
    (32, 2, True): Tile(32, 128, 4),
    (128, 1, False): Tile(128, 128, 16),
    (128, 2, False): Tile(128, 128, 16),
}
#: The same for `quantise_pairs_kernel`. (16, 2, True): of 12 tiles one is faster by 1 %, with fewer registers
#: (benchmarks/results/pairs_tiles_h200_2026-11-30.json); it was not timed on a source, which needs more of them.
PAIRS_TILES = {
    (1, 1, False): Tile(4, 1024, 4),
    (1, 1, True): Tile(8, 256, 1),
    (16, 1, False): Tile(16, 128, 1, vector=4),
    (16, 1, True): Tile(16, 256, 2, vector=4),
    (16, 2, False): Tile(16, 256, 2, vector=4),
    (16, 2, True): Tile(16, 256, 2, vector=4),
}


def _needs(copy: Copy) -> tuple[int, int]:
    """Rows and columns that a tile of the kernel must be multiples of."""
    group = copy.hadamard or 1
    rows, columns = (group, 1) if copy.along == 0 else (1, group)
    return max(rows, copy.tile_rows), max(columns, copy.tile_columns)


def share_a_tile(first: Copy, second: Copy) -> bool:
    """Whether one pass can make both: the same amax pass serves them, and a tile fits the registers."""
    rows, columns = (max(sides) for sides in zip(_needs(first), _needs(second), strict=True))
    has_one_transform = not (first.hadamard and second.hadamard)
    return has_one_transform and first.tensor_max == second.tensor_max and rows * columns <= _MAX_TILE


def choose_tile(copies: tuple[Copy, ...], dtype: torch.dtype) -> Tile:
    """The tile of `quantise_kernel` and `store_kernel`, for copies of a tensor of this dtype."""
    return _choose(copies, len(copies), dtype)


def choose_amax_tile(copy: Copy, dtype: torch.dtype) -> Tile:
    """The tile of `amax_kernel`, which knows the transform of a copy, but neither blocks nor rounding."""
    return _choose((copy._replace(tile_rows=1, tile_columns=1, stochastic=False),), 0, dtype)


def _choose(copies: tuple[Copy, ...], num_copies: int, dtype: torch.dtype) -> Tile:
    """A whole number of blocks and groups; for the usual sizes measured, else about 32 elements a thread."""
    rows, columns = (max(sides) for sides in zip(*map(_needs, copies), strict=True))
    tile = TILES.get((rows, num_copies, any(copy.stochastic for copy in copies)))
    if tile is not None and columns <= tile.columns:
        if dtype == torch.bfloat16 or tile.rows > 32:
            return tile
        # The same bytes a thread.
        return Tile(tile.rows, max(tile.columns // 2, columns), tile.num_warps, vector=4)
    columns = max(columns, 64)
    return Tile(rows, columns, 8 if rows * columns >= 8192 else 4)


def fits_pairs(copy: Copy) -> bool:
    """Whether `quantise_pairs_kernel` has a tile and the arithmetic for a copy."""
    return (
        copy.is_e2m1
        and copy.rule == TWO_LEVEL_TE
        and min(copy.tile_rows, copy.tile_columns) == 1
        and not (copy.hadamard and copy.along == 1)
        and _needs(copy)[0] <= MAX_PAIRS_ROWS
    )


def choose_pairs_tile(copies: tuple[Copy, ...]) -> Tile:
    """The tile of `quantise_pairs_kernel`, for copies that fit it."""
    rows = max(_needs(copy)[0] for copy in copies)
    is_stochastic = any(copy.stochastic for copy in copies)
    return PAIRS_TILES.get((rows, len(copies), is_stochastic), PAIRS_TILES[1, 1, is_stochastic])


def num_amax_programs(tile: Tile, x: Tensor) -> int:
    """Programs of the amax pass over x: a few per multiprocessor, each takes tiles in turn; never more than tiles."""
    return min(tile.count(*x.shape), AMAX_PROGRAMS * _num_multiprocessors(x.device))


@functools.cache
def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
