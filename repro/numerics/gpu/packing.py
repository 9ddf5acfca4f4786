"""Stored copies of a tensor on a GPU: planned and launched.

Paper (arXiv 2509.25149) section 2. `StorePass` runs `store_kernel` for one or two copies of a tensor x [M, N]; the
ways in are `pack_gpu` here (the layout of `repro.numerics.packing`, to the bit) and `fp8_operand.py` (the layout of
FP8 matrix products).

Does not: check arguments (`repro.numerics.packing` does), or run on a CPU, except in Triton's interpreter.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from repro.numerics.formats import FP32
from repro.numerics.gpu import packing_kernels
from repro.numerics.gpu.arithmetic import Copy
from repro.numerics.gpu.binding import plan_pass
from repro.numerics.gpu.passes import Launch, seed_words, signs_of
from repro.numerics.gpu.tiles import Tile, choose_tile
from repro.numerics.operand import CopyRequest
from repro.numerics.packing import Packed


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a stored copy lies: codes [outer, bytes] contiguous, scales [outer blocks, inner blocks] with strides."""

    outer: int
    bytes: int
    outer_blocks: int
    inner_blocks: int
    scale_strides: tuple[int, int]

    def arguments(self, codes: Tensor, scales: Tensor) -> tuple:
        """Those of `store_kernel`."""
        return (
            codes,
            scales,
            self.outer,
            self.bytes,
            self.outer_blocks,
            self.inner_blocks,
            *self.scale_strides,
        )


class StorePass:
    """`store_kernel` for tensors of one shape, layout and dtype, and one or two kinds of copies.

    ONE_CODE where the second copy is the first one transposed: square blocks, rounded to nearest, no transform.
    """

    def __init__(
        self,
        x: Tensor,
        copies: tuple[Copy, ...],
        layouts: tuple[Layout, ...],
        num_partials: int,
        tile: Tile | None = None,
    ) -> None:
        self.layouts = layouts
        tile = tile or choose_tile(copies, x.dtype)
        num_columns = x.shape[1]
        plain = all(not copy.hadamard and not copy.stochastic for copy in copies)
        first, last = copies[0], copies[-1]
        constants = {
            "COPY_0": first,
            "COPY_1": last,
            "PAIR": len(copies) == 2,
            "ONE_CODE": plain
            and first._replace(along=last.along) == last
            and first.tile_rows == first.tile_columns,
            "NATIVE": _casts_to_e4m3(x.device),
            "PARTIALS": 1 << (num_partials - 1).bit_length() if num_partials else 1,
            "EVEN": tile.divides(*x.shape),
            "ALIGNED": num_columns % 16 == 0 and tile.columns % 16 == 0,
            **tile.constants,
        }
        self.num_programs = tile.count(*x.shape)
        self._store = Launch(
            packing_kernels.store_kernel,
            self.num_programs,
            tile.num_warps,
            constants,
            max_registers=tile.max_registers,
        )

    def __call__(
        self,
        x: Tensor,
        stored: tuple[tuple[Tensor, Tensor], ...],
        partials: list[Tensor],
        signs: tuple[Tensor, ...],
        seeds: tuple[tuple[int | Tensor, int], ...],
    ) -> None:
        """Fills `stored`, (codes, scales) of each copy. partials, signs, seeds: as `Pass.quantise` takes them."""
        first, last = (
            (*self.layouts[i].arguments(*stored[i]), signs[i], partials[i], *seeds[i]) for i in (0, -1)
        )
        self._store(x.device, (x, *x.shape, *x.stride(), *first, *last))


def _casts_to_e4m3(device: torch.device) -> bool:
    """Whether the device has a cast to E4M3 that rounds to nearest even and saturates (Ada, Hopper and later)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def pack_gpu(x: Tensor, requests: tuple[CopyRequest, ...]) -> tuple[Packed, ...]:
    """One or two packed copies of x [M, N] (float32 or bfloat16, any strides) from one pass over x, and one before it
    for the amaxes where the format has a tensor scale: `repro.numerics.packing.make_packed`, to the bit."""
    x = x.detach()
    amax_pass = plan_pass(x, requests)
    if amax_pass is None:  # the copies do not share a tile: two passes of the same kernel, so no log line
        return tuple(pack_gpu(x, (request,))[0] for request in requests)
    signs = tuple(signs_of(request, x) for request in requests)
    layouts = tuple(_layout(x, request) for request in requests)
    has_tensor_scale = amax_pass.has_tensor_scale
    store = StorePass(x, amax_pass.copies, layouts, amax_pass.num_partials)
    if has_tensor_scale:
        partials = amax_pass.partial_amaxes(x, signs)
    else:
        partials = [torch.empty(store.num_programs, dtype=torch.float32, device=x.device) for _ in requests]
    stored = tuple(
        (
            torch.empty(layout.outer, layout.bytes, dtype=torch.uint8, device=x.device),
            torch.empty(
                layout.outer_blocks, layout.inner_blocks, dtype=_scale_dtype(request), device=x.device
            ),
        )
        for layout, request in zip(layouts, requests, strict=True)
    )
    store(x, stored, partials, signs, tuple(seed_words(request.seed) for request in requests))
    if not has_tensor_scale and not any(request.hadamard for request in requests):
        partials[-1] = partials[0]  # left once
    return tuple(
        Packed(
            codes,
            scales.repeat_interleave(request.spec.tile[0], dim=0) if request.spec.tile[0] > 1 else scales,
            partial.amax().reshape(1),
            request.spec,
        )
        for (codes, scales), partial, request in zip(stored, partials, requests, strict=True)
    )


def _scale_dtype(request: CopyRequest) -> torch.dtype:
    return torch.float32 if request.spec.format.scale == FP32 else torch.uint8


def _layout(x: Tensor, request: CopyRequest) -> Layout:
    outer, inner = x.shape if request.along == 1 else x.shape[::-1]
    rows, columns = request.spec.tile
    blocks = -(-inner // columns)
    return Layout(
        outer=outer,
        bytes=inner // 2 if request.spec.format.element.bits == 4 else inner,
        outer_blocks=-(-outer // rows),
        inner_blocks=blocks,
        scale_strides=(blocks, 1),
    )
