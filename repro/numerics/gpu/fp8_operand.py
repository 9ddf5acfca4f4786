"""FP8 operands as a block-scaled FP8 matrix product takes them: bytes, row by row along the contraction.

Paper (arXiv 2509.25149) Appendix A.1: E4M3, one FP32 scale per 1x128 block of an activation or gradient and per
128x128 block of a weight. `fp8_copies` reads a tensor x [M, N] once and writes the copy for the product that
contracts N and, transposed, the one for the product that contracts M:

    rows     codes [M, N]    blocks along N
    columns  codes [N, M]    blocks along M

Codes and scales have the bits of `quantize`. Padding, exact because zeros add nothing, and told in one log line a
shape: the contraction to multiples of 128, the other dimension to multiples of 16. Scales lie as cuBLASLt reads them
("scaling factors layouts" of its manual): of 1x128 blocks [K / 128, outer], of 128x128 blocks [outer / 128, K / 128
padded to 4].

Does not: multiply (`fp8_product.py`), transform, or round stochastically; no hardware that has this product needs it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from repro.numerics.formats import FP8_BLOCK, QuantSpec
from repro.numerics.gpu.packing import Layout, StorePass
from repro.numerics.gpu.passes import copy_constants
from repro.numerics.gpu.tiles import Tile
from repro.numerics.rounding import decode

_LOG = logging.getLogger(__name__)

BLOCK = 128
#: The other dimension of a product must be a multiple of this.
OUTER_MULTIPLE = 16

_VECTOR = QuantSpec(FP8_BLOCK, FP8_BLOCK.tiles_1d)
_SQUARE = QuantSpec(FP8_BLOCK, FP8_BLOCK.tiles_2d)


@dataclass(frozen=True)
class Fp8Operand:
    """One operand of a product that contracts its second dimension."""

    #: float8_e4m3fn [outer, K], both padded with zeros; contiguous.
    codes: Tensor
    #: float32: [K / 128, outer], or if square [outer / 128, K / 128 padded to a multiple of 4].
    scales: Tensor
    #: Whether blocks are 128x128, else 1x128.
    is_square: bool
    #: (outer, K) without padding.
    shape: tuple[int, int]

    def values(self) -> Tensor:
        """float32 [outer, K]: element value x block scale, the bits that `make_operand` gives."""
        outer, size = self.codes.shape
        blocks = -(-size // BLOCK)
        scales = self.scales[:, :blocks] if self.is_square else self.scales.t()
        if self.is_square:
            scales = scales.repeat_interleave(BLOCK, dim=0)[:outer]
        scales = scales.repeat_interleave(BLOCK, dim=1)
        values = decode(self.codes.view(torch.uint8), FP8_BLOCK.element) * scales
        return values[: self.shape[0], : self.shape[1]]


@dataclass(frozen=True)
class Fp8Copies:
    """What `fp8_copies` made of a tensor."""

    rows: Fp8Operand | None
    columns: Fp8Operand | None
    #: float32 scalar: max |x|; NaN or infinite if x was.
    amax: Tensor


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


#: A program's tile where only rows of 1x128 blocks are written, and else; with so many registers two programs of the
#: second fit a multiprocessor, and one computes while the other loads.
_ROW_TILE, _TILE = Tile(16, 128, 2, max_registers=128), Tile(128, 128, 8, max_registers=128)


class _Plan:
    """What copies of tensors of one shape, layout and dtype need."""

    def __init__(self, x: Tensor, *, square: bool, rows: bool, columns: bool) -> None:
        spec = _SQUARE if square else _VECTOR
        alongs = [along for along, wanted in ((1, rows), (0, columns)) if wanted]
        self.square = square
        self.shapes = [tuple(x.shape) if along == 1 else tuple(x.shape[::-1]) for along in alongs]
        self.padded = [
            (_round_up(outer, OUTER_MULTIPLE), _round_up(size, BLOCK)) for outer, size in self.shapes
        ]
        layouts = tuple(self._layout(*padded) for padded in self.padded)
        copies = tuple(copy_constants(spec, along, 0, False) for along in alongs)
        tile = _TILE if square or columns else _ROW_TILE
        self.store = StorePass(x, copies, layouts, 0, tile)
        if self.padded != self.shapes:
            _LOG.info("FP8 operands %s are padded with zeros to %s", self.shapes, self.padded)

    def _scale_shape(self, outer: int, size: int) -> tuple[int, int]:
        blocks = size // BLOCK
        return (-(-outer // BLOCK), _round_up(blocks, 4)) if self.square else (blocks, outer)

    def _layout(self, outer: int, size: int) -> Layout:
        pitch = self._scale_shape(outer, size)[1]
        return Layout(
            outer=outer,
            bytes=size,
            outer_blocks=-(-outer // BLOCK) if self.square else outer,
            inner_blocks=size // BLOCK,
            scale_strides=(pitch, 1) if self.square else (1, pitch),
        )

    def run(self, x: Tensor) -> tuple[list[Fp8Operand], Tensor]:
        stored = []
        for padded in self.padded:
            shape = self._scale_shape(*padded)
            is_full = not self.square or shape[1] == padded[1] // BLOCK
            make = torch.empty if is_full else torch.zeros  # the product may read scales of the padding
            codes = torch.empty(padded, dtype=torch.uint8, device=x.device)
            stored.append((codes, make(shape, dtype=torch.float32, device=x.device)))
        partials = torch.empty(self.store.num_programs, dtype=torch.float32, device=x.device)
        self.store(x, tuple(stored), [partials, partials], (x, x), ((0, 0), (0, 0)))
        operands = [
            Fp8Operand(codes.view(torch.float8_e4m3fn), scales, self.square, shape)
            for (codes, scales), shape in zip(stored, self.shapes, strict=True)
        ]
        return operands, partials.amax()


_PLANS: dict[tuple, _Plan] = {}


def fp8_copies(x: Tensor, *, square: bool = False, rows: bool = True, columns: bool = False) -> Fp8Copies:
    """E4M3 copies of x [M, N] (float32 or bfloat16, any strides), in one pass over it.

    `square`: 128x128 blocks (weights), else 1x128 along each copy's contraction. `rows`, `columns`: which copies, at
    least one. NaN gives code 0 under a NaN scale. Nothing here waits for the device.
    """
    assert x.dtype in (torch.float32, torch.bfloat16), x.dtype
    assert rows or columns
    x = x.detach()
    key = (x.device, x.dtype, x.shape, x.stride(), x.data_ptr() % 16, square, rows, columns)
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) > 4096:  # shapes without end, as an expert's number of tokens
            _PLANS.clear()
        plan = _PLANS[key] = _Plan(x, square=square, rows=rows, columns=columns)
    operands, amax = plan.run(x)
    return Fp8Copies(operands[0] if rows else None, operands[-1] if columns else None, amax)
