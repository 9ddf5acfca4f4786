"""mamba_ssm's Triton kernels of the Mamba-2 scan, with fixed tiles.

The package's own choice of tiles by timing may differ from start to start, and with it the order of sums and the
bits; its deterministic mode takes the smallest tiles, at a third more time. Here a kernel has the tile that
benchmarks/ssd_tiles.py measured to be the fastest, with one exception (`TILES`).

Shapes: B sequences, S tokens, H heads, P features of a head, G groups, N state size, K chunks of L tokens.

Does not: know in which order the kernels run (ssd_kernels.py), or run with another version of mamba_ssm than the one
whose kernels it knows.
"""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

#: The version whose kernels and their parameters this file knows.
VERSION = "2.3.2.post1"

#: Kernel -> module of mamba_ssm.ops.triton.
MODULES = {
    "_chunk_cumsum_fwd_kernel": "ssd_chunk_state",
    "_chunk_state_fwd_kernel": "ssd_chunk_state",
    "_state_passing_fwd_kernel": "ssd_state_passing",
    "_bmm_chunk_fwd_kernel": "ssd_bmm",
    "_chunk_scan_fwd_kernel": "ssd_chunk_scan",
    "_chunk_scan_bwd_dstates_kernel": "ssd_chunk_scan",
    "_state_passing_bwd_kernel": "ssd_state_passing",
    "_chunk_scan_chunk_state_bwd_dx_kernel": "ssd_combined",
    "_chunk_state_bwd_db_kernel": "ssd_chunk_state",
    "_chunk_scan_bwd_dc_kernel": "ssd_chunk_scan",
    "_chunk_scan_bwd_dcb_kernel": "ssd_chunk_scan",
    "_bmm_chunk_bwd_kernel": "ssd_bmm",
    "_chunk_scan_bwd_ddAcs_stable_kernel": "ssd_chunk_scan",
    "_chunk_cumsum_bwd_kernel": "ssd_chunk_state",
}


@functools.cache
def load_kernels() -> dict[str, Any]:
    """Triton's functions by name, each inside its package's chooser of tiles. Raises ImportError."""
    version = importlib.import_module("mamba_ssm").__version__
    if version != VERSION:
        raise ImportError(f"mamba_ssm {version}; the scan's kernels are known of {VERSION}")
    return {
        name: getattr(importlib.import_module(f"mamba_ssm.ops.triton.{module}"), name)
        for name, module in MODULES.items()
    }


class Tile(NamedTuple):
    """Rows, columns and depth of a kernel's tile (0: the kernel has none), warps, stages of the pipeline."""

    m: int
    n: int
    k: int
    num_warps: int
    num_stages: int


#: Measured on an H200 for states of 128 and chunks of 128: (heads of up to 32 features, larger heads). All are the
#: fastest of benchmarks/results/ssd_tiles_h200_2026-11-29.json but `_bmm_chunk_fwd_kernel`'s: the fourth, 0.093
#: against 0.088 ms a launch. Recorded runs were trained with it, and another tile may add in another order: for other
#: bits in every loss, 5 % of the shortest product is too little.
TILES: dict[str, tuple[Tile, Tile]] = {
    "_chunk_state_fwd_kernel": (Tile(32, 64, 32, 2, 5), Tile(64, 128, 32, 4, 4)),
    "_bmm_chunk_fwd_kernel": (Tile(64, 64, 32, 2, 4), Tile(64, 64, 32, 2, 4)),
    "_chunk_scan_fwd_kernel": (Tile(64, 32, 32, 2, 5), Tile(64, 64, 32, 2, 4)),
    "_chunk_scan_bwd_dstates_kernel": (Tile(32, 64, 32, 2, 5), Tile(64, 128, 32, 4, 4)),
    "_chunk_scan_chunk_state_bwd_dx_kernel": (Tile(64, 32, 32, 4, 5), Tile(32, 64, 32, 4, 5)),
    "_chunk_state_bwd_db_kernel": (Tile(64, 128, 0, 4, 3), Tile(64, 128, 0, 4, 3)),
    "_chunk_scan_bwd_dc_kernel": (Tile(64, 128, 0, 4, 3), Tile(64, 128, 0, 4, 3)),
    "_chunk_scan_bwd_dcb_kernel": (Tile(64, 32, 0, 4, 3), Tile(64, 32, 0, 4, 3)),
    "_bmm_chunk_bwd_kernel": (Tile(64, 128, 32, 4, 4), Tile(64, 128, 32, 4, 4)),
    "_chunk_scan_bwd_ddAcs_stable_kernel": (Tile(32, 32, 0, 4, 3), Tile(64, 32, 0, 4, 3)),
}


#: Heads, and numbers of a state, that one program of the kernels without tiles takes: one size for all of them, at
#: most 6 % slower than each one's fastest in the same file.
_HEADS_OF_A_BLOCK, _STATES_OF_A_BLOCK = 8, 512
#: Arguments of what is not used here: limits of dt, and strides of sequence numbers inside a sequence.
NO_LIMITS = (0.0, math.inf)
NO_INDEX = (0, 0)


def tile_of(name: str, features: int) -> Tile:
    """The tile of a kernel for heads of `features`."""
    return TILES[name][features > 32]


def launch(
    name: str, features: int, shape: tuple[int, int], grid: tuple[int, int], *arguments: Any, **constants: Any
) -> None:
    """Runs a kernel for heads of `features` on the tiles of [rows, columns] = `shape` at each point of `grid`."""
    tile = tile_of(name, features)
    depth = "BLOCK_SIZE_CS" if name == "_bmm_chunk_bwd_kernel" else "BLOCK_SIZE_K"
    if tile.k:
        constants[depth] = tile.k
    if tile.n:
        constants["BLOCK_SIZE_N"] = tile.n
    num_tiles = triton.cdiv(shape[0], tile.m) * (triton.cdiv(shape[1], tile.n) if tile.n else 1)
    load_kernels()[name].fn[num_tiles, *grid](
        *arguments, **constants, BLOCK_SIZE_M=tile.m, num_warps=tile.num_warps, num_stages=tile.num_stages
    )


def _launch_untiled(name: str, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    load_kernels()[name].fn[grid](*arguments, **constants, num_warps=4, num_stages=3)


class Sizes:
    """Sizes of one scan, tensors of these sizes, and launches over its chunks, heads and states."""

    def __init__(self, xBC: Tensor, dt: Tensor, groups: int, state: int, chunk: int) -> None:
        self.batch, self.tokens, self.heads = dt.shape
        self.groups, self.state, self.chunk = groups, state, chunk
        self.features = (xBC.shape[-1] - 2 * groups * state) // self.heads
        self.chunks = triton.cdiv(self.tokens, chunk)
        self.ratio = self.heads // groups
        self.device, self.dtype = xBC.device, xBC.dtype
        self.dot = tl.bfloat16 if xBC.dtype == torch.bfloat16 else tl.float32

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Unwritten memory on the scan's device."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def per_token(self, *leading: int) -> Tensor:
        """[*leading, B, H, K, L]."""
        return self.empty(*leading, self.batch, self.heads, self.chunks, self.chunk)

    def per_chunk(
        self, name: str, rows: int, columns: int, heads: int, *arguments: Any, **constants: Any
    ) -> None:
        grid = self.batch * self.chunks, heads
        launch(name, self.features, (rows, columns), grid, *arguments, HAS_SEQ_IDX=False, **constants)

    def by_heads(self, name: str, *arguments: Any, **constants: Any) -> None:
        """A kernel whose program takes some heads of a chunk."""
        blocks = triton.cdiv(self.heads, _HEADS_OF_A_BLOCK)
        _launch_untiled(
            name, (self.batch, self.chunks, blocks), *arguments, **constants, BLOCK_SIZE_H=_HEADS_OF_A_BLOCK,
            BLOCK_SIZE_CHUNK=triton.next_power_of_2(self.chunk), DT_SOFTPLUS=True, HAS_DT_BIAS=True,
        )  # fmt: skip

    def by_states(self, name: str, *arguments: Any, **constants: Any) -> None:
        """A kernel whose program takes some numbers of a head's state, from chunk to chunk."""
        _launch_untiled(
            name, (self.parts_of_state, self.batch, self.heads), *arguments, **constants,
            HAS_SEQ_IDX=False, BLOCK_SIZE=_STATES_OF_A_BLOCK,
        )  # fmt: skip

    @property
    def numbers_of_state(self) -> int:
        """Of one head."""
        return self.features * self.state

    @property
    def parts_of_state(self) -> int:
        """Programs of `by_states` that share a state."""
        return triton.cdiv(self.numbers_of_state, _STATES_OF_A_BLOCK)

    @property
    def block_of_features(self) -> int:
        """Features of a head, as a block of a kernel."""
        return max(triton.next_power_of_2(self.features), 16)

    @property
    def block_of_state(self) -> int:
        """Size of a state, as a block of a kernel."""
        return max(triton.next_power_of_2(self.state), 16)


def by_chunk(t: Tensor) -> tuple[int, int, int, int]:
    """Strides of [B, H, K, L] in the kernels' order: sequence, chunk, head, token."""
    return t.stride(0), t.stride(2), t.stride(1), t.stride(3)
