"""Call the Triton kernels on PyTorch tensors.

    make_operand_gpu        x [M, N] -> Operand
    make_operand_pair_gpu   x [M, N] -> two Operands of different requests; x is read once (and once for the amaxes)

Bit-identical to `make_operand_reference`: values, scale, amax, NaN and Inf included. The values' dtype is BF16 for
formats that are exact in it (NVFP4, MXFP4), else FP32 (FP8 with FP32 scales; MXFP8, whose smallest values are below
BF16's).

What the kernels do not take goes to the reference, with one log line each: another dtype than FP32 and BF16, or an
argument that the reference refuses (it then raises).

Does not: differentiate, or synchronise with the device.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from repro.numerics.formats import BF16, E4M3, UE8M0, BlockFormat, QuantSpec
from repro.numerics.gpu import arithmetic, kernels
from repro.numerics.hadamard import SIZES, scale_factors
from repro.numerics.operand import CopyRequest, Operand, make_operand_reference

_LOG = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.bfloat16)


@functools.cache
def carrier_dtype(form: BlockFormat) -> torch.dtype:
    """BF16 if every element value times every block scale is a BF16 number, else FP32.

    Significands multiply to the sum of their bits, and the smallest product must not underflow.
    """
    bits = form.element.mantissa_bits + 1 + form.scale.mantissa_bits + 1
    smallest = form.element.min_subnormal * form.scale.min_subnormal
    is_exact = bits <= BF16.mantissa_bits + 1 and smallest >= BF16.min_subnormal
    return torch.bfloat16 if is_exact else torch.float32


def make_operand_gpu(
    x: Tensor,
    spec: QuantSpec,
    *,
    along: int,
    hadamard: int = 0,
    signs: Tensor | None = None,
    seed: int | None = None,
) -> Operand:
    """`make_operand_reference`, to the bit, by the Triton kernels. x: [M, N] float32 or bfloat16, any strides."""
    request = CopyRequest(spec, along, hadamard, signs, seed)
    return _make(x, (request,))[0]


def make_operand_pair_gpu(x: Tensor, first: CopyRequest, second: CopyRequest) -> tuple[Operand, Operand]:
    """Two operands of one tensor, e.g. its row copy and its transformed column copy, in one pass over x."""
    one, other = _make(x, (first, second))
    return one, other


def _make(x: Tensor, requests: tuple[CopyRequest, ...]) -> tuple[Operand, ...]:
    reason = next(filter(None, (_refusal(x, request) for request in requests)), None)
    if reason is not None:
        _say_reference_runs(reason)
        return tuple(_by_reference(x, request) for request in requests)
    x = x.detach()
    if len(requests) == 2 and not _share_a_tile(*requests):
        return tuple(_run(x, (request,))[0] for request in requests)
    return _run(x, requests)


def _by_reference(x: Tensor, request: CopyRequest) -> Operand:
    """The reference's operand, its values in the dtype that the kernels give."""
    r = request
    operand = make_operand_reference(
        x, r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=r.seed
    )
    return Operand(operand.values.to(carrier_dtype(r.spec.format)), operand.scale, operand.amax)


def _refusal(x: Tensor, request: CopyRequest) -> str | None:
    """Why the kernels do not take this call; None if they do."""
    size, signs = request.hadamard, request.signs
    if x.dtype not in _DTYPES:
        return f"{str(x.dtype).removeprefix('torch.')} input"
    if x.dim() != 2 or x.numel() == 0 or request.along not in (0, 1):
        return "no matrix"
    if (request.seed is not None) != (request.spec.rounding == "sr"):
        return "rounding and seed do not fit"
    if size and (size not in SIZES or x.shape[request.along] % size):
        return f"a Hadamard transform of size {size} does not fit"
    if size and signs is not None and signs.shape != (size,):
        return "signs do not fit"
    if _copy_constants(request.spec, request.along, size, signs is not None) is None:
        return f"format {request.spec.format.name}"
    return None


@functools.cache
def _say_reference_runs(reason: str) -> None:
    _LOG.warning("operands are quantised by the PyTorch reference (same bits, much slower): %s", reason)


@functools.cache
def _copy_constants(spec: QuantSpec, along: int, hadamard: int, has_signs: bool) -> arithmetic.Copy | None:
    """The compile-time constants of a copy; None for a format whose scales the kernels do not know."""
    form = spec.format
    rule = {
        ("two_level", E4M3): getattr(arithmetic, f"TWO_LEVEL_{spec.scale_order.upper()}"),
        ("power_of_two_up", UE8M0): arithmetic.POWER_OF_TWO_UP,
        ("amax_over_max", form.scale): arithmetic.AMAX_OVER_MAX,
    }.get((form.scale_rule, form.scale))
    if rule is None or form.element.mantissa_bits > 3:
        return None
    tile_rows, tile_columns = spec.tile if along == 1 else spec.tile[::-1]
    is_two_level = form.scale_rule == "two_level"
    before, after = scale_factors(hadamard) if hadamard else (1.0, 1.0)
    return arithmetic.Copy(
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        along=along,
        hadamard=hadamard,
        has_signs=hadamard > 0 and has_signs,
        stochastic=spec.rounding == "sr",
        rule=rule,
        element_max=form.element.max,
        element_min_normal=form.element.min_normal,
        element_mantissa_bits=form.element.mantissa_bits,
        keeps_negative_zero=form.element.keeps_negative_zero,
        element_reciprocal=float(torch.tensor(1.0) / torch.tensor(form.element.max)),
        scale_max=form.scale.max if is_two_level else 0.0,
        scale_min_normal=form.scale.min_normal if is_two_level else 0.0,
        scale_mantissa_bits=form.scale.mantissa_bits if is_two_level else 0,
        tensor_max=form.tensor_max if form.tensor_scale else 0.0,
        scale_code_max=form.scale.code_of_max if form.scale == UE8M0 else 0,
        factor_before=before,
        factor_after=after,
    )


def _constants(request: CopyRequest) -> arithmetic.Copy:
    copy = _copy_constants(request.spec, request.along, request.hadamard, request.signs is not None)
    assert copy is not None
    return copy


def _needs(copy: arithmetic.Copy) -> tuple[int, int]:
    """Rows and columns that a tile of the kernel must be multiples of."""
    group = copy.hadamard or 1
    rows, columns = (group, 1) if copy.along == 0 else (1, group)
    return max(rows, copy.tile_rows), max(columns, copy.tile_columns)


#: Largest tile of the kernel in elements: more does not fit the registers of 8 warps.
_MAX_TILE = 16384


def _share_a_tile(first: CopyRequest, second: CopyRequest) -> bool:
    """Whether one pass can make both: the same amax pass serves them, and a tile fits the registers."""
    a, b = _constants(first), _constants(second)
    rows, columns = (max(sides) for sides in zip(_needs(a), _needs(b), strict=True))
    has_one_transform = not (a.hadamard and b.hadamard)
    return has_one_transform and a.tensor_max == b.tensor_max and rows * columns <= _MAX_TILE


@dataclass(frozen=True)
class Tile:
    """How the kernel cuts a tensor up."""

    rows: int
    columns: int
    num_warps: int
    #: Neighbouring elements that one thread holds.
    vector: int = 8


#: Measured on an H200, for BF16 input: (rows that a tile needs, copies, stochastic) -> tile; 0 copies: amax pass.
TILES = {
    (1, 0, False): Tile(8, 1024, 4),
    (16, 0, False): Tile(16, 1024, 4),
    (1, 1, False): Tile(4, 1024, 4),
    (1, 1, True): Tile(4, 256, 1),
    (16, 1, False): Tile(16, 128, 1, vector=4),
    (16, 1, True): Tile(16, 256, 2, vector=4),
    (16, 2, False): Tile(16, 256, 4),
    (16, 2, True): Tile(16, 256, 4),
    (32, 2, False): Tile(32, 128, 4),
    (32, 2, True): Tile(32, 128, 4),
    (128, 1, False): Tile(128, 128, 16),
    (128, 2, False): Tile(128, 128, 16),
}
#: Programs of the amax pass per multiprocessor.
AMAX_PROGRAMS = 4


def _choose_tile(copies: list[arithmetic.Copy], num_copies: int, dtype: torch.dtype) -> Tile:
    """A whole number of blocks and groups; for the usual sizes measured, else about 32 elements a thread."""
    if num_copies == 0:  # the amax pass knows no blocks
        copies = [copy._replace(tile_rows=1, tile_columns=1) for copy in copies]
    rows, columns = (max(sides) for sides in zip(*map(_needs, copies), strict=True))
    tile = TILES.get((rows, num_copies, any(copy.stochastic for copy in copies) and num_copies > 0))
    if tile is not None and columns <= tile.columns:
        if dtype == torch.bfloat16 or tile.rows > 32:
            return tile
        return Tile(
            tile.rows, max(tile.columns // 2, columns), tile.num_warps, vector=4
        )  # the same bytes a thread
    columns = max(columns, 64)
    return Tile(rows, columns, 8 if rows * columns >= 8192 else 4)


@functools.cache
def _has_native_e2m1(device: torch.device) -> bool:
    """Whether the device has BF16 products and minima by magnitude in pairs (Hopper and later)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def _amax_programs(device: torch.device) -> int:
    if device.type != "cuda":
        return 3
    return AMAX_PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count


def _run(x: Tensor, requests: tuple[CopyRequest, ...]) -> tuple[Operand, ...]:
    copies = [_constants(request) for request in requests]
    signs = [_signs(request, x) for request in requests]
    partials = partial_amaxes(x, copies, signs) if copies[0].tensor_max > 0.0 else None
    return quantise(x, requests, copies, signs, partials)


def quantise(
    x: Tensor,
    requests: tuple[CopyRequest, ...],
    copies: list[arithmetic.Copy],
    signs: list[Tensor],
    amaxes: list[Tensor] | None,
    tile: Tile | None = None,
) -> tuple[Operand, ...]:
    """The quantising pass. `amaxes`: what `partial_amaxes` gave, None for formats without a tensor scale."""
    tile = tile or _choose_tile(copies, len(copies), x.dtype)
    num_rows, num_columns = x.shape
    num_tiles = triton.cdiv(num_rows, tile.rows) * triton.cdiv(num_columns, tile.columns)
    partials = amaxes or [_empty(x, num_tiles) for _ in copies]
    num_partials = amaxes[0].numel() if amaxes else 0
    outs = [torch.empty(x.shape, dtype=carrier_dtype(r.spec.format), device=x.device) for r in requests]
    results = [_empty(x, 2) if amaxes else partials[0] for _ in copies]
    seeds = [_seed_words(request.seed) for request in requests]
    last = len(copies) - 1
    kernels.quantise_kernel[(num_tiles,)](
        x, num_rows, num_columns, x.stride(0), x.stride(1), num_partials,
        outs[0], signs[0], partials[0], results[0], *seeds[0],
        outs[last], signs[last], partials[last], results[last], *seeds[last],
        COPY_0=copies[0], COPY_1=copies[last], PAIR=last == 1,
        NATIVE=_has_native_e2m1(x.device) and all(c.element_mantissa_bits == 1 for c in copies),
        PARTIALS=triton.next_power_of_2(num_partials) if amaxes else 1,
        EVEN=num_rows % tile.rows == 0 and num_columns % tile.columns == 0,
        ALIGNED=num_columns % 16 == 0 and tile.columns % 16 == 0,
        ROWS=tile.rows, COLUMNS=tile.columns, VECTOR=tile.vector,
        num_warps=tile.num_warps, enable_fp_fusion=False,
    )  # fmt: skip
    if amaxes:
        return tuple(Operand(o, r[1], r[0]) for o, r in zip(outs, results, strict=True))
    return tuple(Operand(o, None, p.amax()) for o, p in zip(outs, partials, strict=True))


def partial_amaxes(
    x: Tensor,
    copies: list[arithmetic.Copy],
    signs: list[Tensor],
    tile: Tile | None = None,
    num_programs: int | None = None,
) -> list[Tensor]:
    """The amax pass: for each copy the partial amaxes of x, or of x transformed, all from one read of x."""
    rotated = next((i for i, copy in enumerate(copies) if copy.hadamard), None)
    copy = copies[rotated or 0]
    is_plain = rotated is None or len(copies) > 1
    tile = tile or _choose_tile([copy], 0, x.dtype)
    num_rows, num_columns = x.shape
    num_tiles = triton.cdiv(num_rows, tile.rows) * triton.cdiv(num_columns, tile.columns)
    num_programs = min(num_tiles, num_programs or _amax_programs(x.device))
    partials = _empty(x, 2, num_programs)
    kernels.amax_kernel[(num_programs,)](
        x, signs[rotated or 0], partials, num_rows, num_columns, x.stride(0), x.stride(1), num_programs,
        COPY=copy, PLAIN=is_plain,
        EVEN=num_rows % tile.rows == 0 and num_columns % tile.columns == 0,
        ROWS=tile.rows, COLUMNS=tile.columns, VECTOR=tile.vector,
        num_warps=tile.num_warps, enable_fp_fusion=False,
    )  # fmt: skip
    return [partials[1] if copy.hadamard else partials[0] for copy in copies]


def _empty(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def _signs(request: CopyRequest, x: Tensor) -> Tensor:
    """Contiguous FP32 signs on x's device; where there are none, any tensor: it is not read."""
    if request.signs is None or not request.hadamard:
        return x
    return request.signs.to(device=x.device, dtype=torch.float32).contiguous()


def _seed_words(seed: int | None) -> tuple[int, int]:
    """Low and high 32 bits as signed integers, so that the kernel's argument has one type for all seeds."""
    words = ((seed or 0) & 0xFFFFFFFF, (seed or 0) >> 32 & 0xFFFFFFFF)
    low, high = (word - (1 << 32) if word >> 31 else word for word in words)
    return low, high
