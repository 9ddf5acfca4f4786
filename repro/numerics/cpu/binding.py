"""Call the fused CPU quantiser on PyTorch tensors.

    make_operand_cpu    x [M, N] -> Operand: code value x block scale, FP32 tensor scale, amax
    fake_quantize_cpu   x [M, N] -> the represented values in x's dtype (quantise and dequantise)

Bit-identical to the PyTorch reference in repro/numerics/operand.py. What the kernel does not take goes to that
reference quietly: another dtype or device, an error to be reported, a tensor with Inf or NaN (which the kernel
finds on its way). A machine without the kernel says so in one log line and runs the reference.

Does not: differentiate. Results carry no gradient.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import struct

import torch
from torch import Tensor

from repro.numerics.cpu.build import KernelUnavailable, load_library
from repro.numerics.formats import E2M1, E4M3, QuantSpec
from repro.numerics.hadamard import SIZES
from repro.numerics.operand import Operand, make_operand_reference
from repro.numerics.quantize import quantize

_LOG = logging.getLogger(__name__)

# `Request` of quantize.cpp, field by field.
_REQUEST = struct.Struct("@5P3qQ2i2i2i2if3i")
_STORAGE = {torch.float32: 0, torch.bfloat16: 1}
_ELEMENT = {E2M1: 0, E4M3: 1}
_SCALE_RULE = {
    ("two_level", "te"): 0,
    ("two_level", "paper"): 1,
    ("power_of_two_up", "te"): 2,
    ("power_of_two_up", "paper"): 2,
    ("amax_over_max", "te"): 3,
    ("amax_over_max", "paper"): 3,
}
_DONE, _NON_FINITE = 0, 1
#: LANES of vectors.hpp where it is largest.
_MOST_LANES = 16
_SEED_MASK = 0xFFFFFFFFFFFFFFFF


class _Plan:
    """What a spec means to the kernel, worked out once."""

    def __init__(self, spec: QuantSpec) -> None:
        self.spec = spec  # also keeps id(spec) from being reused
        self.is_stochastic = spec.rounding == "sr"
        self.has_tensor_scale = spec.format.tensor_scale
        element = _ELEMENT.get(spec.format.element)
        rule = _SCALE_RULE.get((spec.format.scale_rule, spec.scale_order))
        # The two-level rule rounds block scales to E4M3 in the kernel, and a row of a block is whole vectors there.
        self.is_supported = (
            None not in (element, rule)
            and (rule not in (0, 1) or spec.format.scale == E4M3)
            and all(size == 1 or (size >= _MOST_LANES and size & (size - 1) == 0) for size in spec.tile)
        )
        #: Whether code value x block scale is exact in BF16: 2 significant bits times at most 4.
        self.is_exact_in_bf16 = spec.format.is_exact_in_bf16
        self.rounding = (element, rule, spec.format.scale.max, int(self.is_stochastic))
        rows, columns = spec.tile
        self.tiles = ((columns, rows), (rows, columns))  # by `along`, in the tensor's own layout


_PLANS: dict[int, _Plan] = {}


def _plan(spec: QuantSpec) -> _Plan:
    # By identity: hashing nested records takes longer than quantising a small tensor.
    plan = _PLANS.get(id(spec))
    if plan is None:
        if len(_PLANS) > 1000:  # specs made anew for every call
            _PLANS.clear()
        plan = _PLANS[id(spec)] = _Plan(spec)
    return plan


@functools.cache
def kernel() -> ctypes.CDLL | None:
    """The compiled library, built on first use; None, after one log line with the reason, without it."""
    try:
        library = load_library()
    except KernelUnavailable as reason:
        _LOG.warning("operands are quantised by the PyTorch reference (same bits, much slower): %s", reason)
        return None
    _LOG.info("operands are quantised by the fused CPU kernel")
    return library


def make_operand_cpu(
    x: Tensor,
    spec: QuantSpec,
    *,
    along: int,
    hadamard: int = 0,
    signs: Tensor | None = None,
    seed: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Operand:
    """`make_operand_reference`, to the bit, with all threads that PyTorch may use (`torch.get_num_threads`).

    x [M, N] float32 or bfloat16; rows may be strided, columns that are not contiguous are copied first.
    dtype: of `Operand.values`. torch.bfloat16 only for E2M1 formats, where it is exact; else ValueError.
    Raises what the reference raises.
    """
    plan = _plan(spec)
    if dtype != torch.float32 and not (dtype == torch.bfloat16 and plan.is_exact_in_bf16):
        raise ValueError(f"operands of {spec.format.name} are not exact in {dtype}")
    result = _run(x, plan, along, hadamard, signs, seed, dtype=dtype, dequantises=0)
    if result is not None:
        return Operand(*result)
    reference = make_operand_reference(x, spec, along=along, hadamard=hadamard, signs=signs, seed=seed)
    if dtype == torch.float32:
        return reference
    return Operand(reference.values.to(dtype), reference.scale, reference.amax)


def fake_quantize_cpu(x: Tensor, spec: QuantSpec, *, along: int = 1, seed: int | None = None) -> Tensor:
    """Quantise and dequantise: what `quantize(...).dequantize()` gives, rounded to x's dtype; x's shape [M, N].

    With `along` = 0 blocks run down the rows. Random bits as in `make_operand`. Raises as the reference does.
    """
    plan = _plan(spec)
    result = _run(x, plan, along, 0, None, seed, dtype=x.dtype, dequantises=1)
    if result is not None:
        return result[0]
    return fake_quantize_reference(x, spec, along=along, seed=seed)


def fake_quantize_reference(x: Tensor, spec: QuantSpec, *, along: int = 1, seed: int | None = None) -> Tensor:
    """`fake_quantize_cpu` in PyTorch alone."""
    from repro.numerics.random_bits import random_bits

    bits = None if seed is None else random_bits(seed, x.shape, x.device)
    if along == 1:
        return quantize(x, spec, random_bits=bits).dequantize().to(x.dtype)
    bits = None if bits is None else bits.t()
    return quantize(x.t(), spec, random_bits=bits).dequantize().t().contiguous().to(x.dtype)


def _is_taken(
    x: Tensor, plan: _Plan, along: int, hadamard: int, signs: Tensor | None, seed: int | None
) -> bool:
    """Whether the kernel takes this call; everything it does not is the reference's, errors included."""
    return (
        plan.is_supported
        and x.dtype in _STORAGE
        and x.is_cpu
        and x.dim() == 2
        and x.numel() > 0
        and along in (0, 1)
        and (seed is not None) == plan.is_stochastic
        and (not hadamard or (hadamard in SIZES and x.shape[along] % hadamard == 0))
        and (signs is None or not hadamard or (signs.shape == (hadamard,) and signs.is_cpu))
        and kernel() is not None
    )


def _run(
    x: Tensor,
    plan: _Plan,
    along: int,
    hadamard: int,
    signs: Tensor | None,
    seed: int | None,
    *,
    dtype: torch.dtype,
    dequantises: int,
) -> tuple[Tensor, Tensor | None, Tensor] | None:
    """(values, scale, amax), or None: the kernel does not take this call, or x (transformed) has Inf or NaN."""
    if not _is_taken(x, plan, along, hadamard, signs, seed):
        return None
    rows, columns = x.shape
    if x.stride(1) != 1:
        x = x.contiguous()
    signs_pointer = 0
    if hadamard and signs is not None:
        if signs.dtype != torch.float32 or not signs.is_contiguous():
            signs = signs.to(torch.float32).contiguous()
        signs_pointer = signs.data_ptr()
    # empty_strided: half the overhead of empty.
    values = torch.empty_strided((rows, columns), (columns, 1), dtype=dtype)
    amax = torch.empty_strided((), (), dtype=torch.float32)
    scale = torch.empty_strided((), (), dtype=torch.float32) if plan.has_tensor_scale else None
    tile_rows, tile_columns = plan.tiles[along]
    element, scale_rule, scale_max, stochastic = plan.rounding
    request = _REQUEST.pack(
        x.data_ptr(),
        values.data_ptr(),
        amax.data_ptr(),
        0 if scale is None else scale.data_ptr(),
        signs_pointer,
        rows,
        columns,
        x.stride(0),
        0 if seed is None else seed & _SEED_MASK,
        _STORAGE[x.dtype],
        _STORAGE[dtype],
        tile_rows,
        tile_columns,
        hadamard,
        along,
        element,
        scale_rule,
        scale_max,
        stochastic,
        dequantises,
        torch.get_num_threads(),
    )
    status = kernel().repro_quantize(request)
    assert status in (_DONE, _NON_FINITE), status
    return (values, scale, amax) if status == _DONE else None
