"""Call the Triton kernels on PyTorch tensors.

    make_operand_gpu        x [M, N] -> Operand
    make_operand_pair_gpu   x [M, N] -> two Operands of different requests; x is read once (and once for the amaxes),
                            or a squared ReLU or its gradient in place of x, worked out in the same passes

Bit-identical to `make_operand_reference`: values, scale, amax, NaN and Inf included. The values' dtype is BF16 for
formats that are exact in it (NVFP4, MXFP4), else FP32 (FP8 with FP32 scales; MXFP8, whose smallest values are below
BF16's).

What the kernels do not take goes to the reference, with one log line each: another dtype than FP32 and BF16, or an
argument that the reference refuses (it then raises). A squared ReLU or gradient of another dtype than BF16, or of
tensors of different strides, is first made a tensor, with a log line too.

Nothing here synchronises with the device or keeps a state on the host, so that a CUDA graph can hold it: warm up once
with the shapes to come (Triton compiles then), give seeds as int64 tensors and fresh signs in a tensor of their own,
and write both anew before each replay.

Does not: differentiate.
"""

from __future__ import annotations

import functools
import logging

import torch
from torch import Tensor

from repro.numerics.formats import QuantSpec
from repro.numerics.gpu.passes import Pass, carrier_dtype, copy_constants, tensors_of
from repro.numerics.gpu.tiles import share_a_tile
from repro.numerics.hadamard import SIZES
from repro.numerics.operand import CopyRequest, Operand, fits, make_operand_reference
from repro.numerics.source import Source, materialise

_LOG = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.bfloat16)


def make_operand_gpu(
    x: Tensor,
    spec: QuantSpec,
    *,
    along: int,
    hadamard: int = 0,
    signs: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> Operand:
    """`make_operand_reference`, to the bit, by the Triton kernels. x: [M, N] float32 or bfloat16, any strides."""
    request = CopyRequest(spec, along, hadamard, signs, seed)
    return _make(x, (request,))[0]


def make_operand_pair_gpu(source: Source, first: CopyRequest, second: CopyRequest) -> tuple[Operand, Operand]:
    """Two operands of one source, e.g. its row copy and its transformed column copy, in one pass over it."""
    one, other = _make(source, (first, second))
    return one, other


#: What calls need, by everything that it follows from. The specifications are kept, so that their identity stays.
_PLANS: dict[tuple, tuple[Pass | None, tuple[QuantSpec, ...]]] = {}


def _make(source: Source, requests: tuple[CopyRequest, ...]) -> tuple[Operand, ...]:
    x, y = tensors_of(source)
    if source is x:
        source = x = y = x.detach()
    elif x.dtype != torch.bfloat16 or x.stride() != y.stride():
        _say_materialised(f"{x.dtype} of strides {x.stride()} and {y.stride()}")
        return _make(materialise(source), requests)
    # By identity of the specification: hashing nested records takes longer than a launch.
    key = (
        type(source), x.device, x.dtype, x.shape, x.stride(), x.data_ptr() % 16, y.data_ptr() % 16,
        *(
            (id(r.spec), r.along, r.hadamard, _kind(r.seed), None if r.signs is None else r.signs.shape)
            for r in requests
        ),
    )  # fmt: skip
    found = _PLANS.get(key)
    if found is None:
        reason = next(filter(None, (_refusal(x, request) for request in requests)), None)
        if reason is not None:
            _say_reference_runs(reason)
            return tuple(_by_reference(materialise(source), request) for request in requests)
        if len(_PLANS) > 4096:  # specifications made anew for every call
            _PLANS.clear()
        found = _PLANS[key] = (plan_pass(source, requests), tuple(r.spec for r in requests))
    plan = found[0]
    if plan is None:  # two passes, each of a fused kernel: nothing that a log has to say
        return tuple(_make(source, (request,))[0] for request in requests)
    return plan.run(source, requests)


def _kind(seed: int | Tensor | None) -> object:
    return (seed.dtype, seed.device, seed.numel()) if isinstance(seed, Tensor) else type(seed)


def plan_pass(source: Source, requests: tuple[CopyRequest, ...]) -> Pass | None:
    """The pass that makes these copies; None where each needs its own."""
    copies = tuple(copy_constants(r.spec, r.along, r.hadamard, r.signs is not None) for r in requests)
    if len(copies) == 2 and not share_a_tile(*copies):
        return None
    return Pass(source, copies, tuple(carrier_dtype(r.spec.format) for r in requests))


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
    if (request.seed is not None) != (request.spec.rounding == "sr") or not fits(request.seed, x):
        return "rounding and seed do not fit"
    if size and (size not in SIZES or x.shape[request.along] % size):
        return f"a Hadamard transform of size {size} does not fit"
    if size and signs is not None and signs.shape != (size,):
        return "signs do not fit"
    if copy_constants(request.spec, request.along, size, signs is not None) is None:
        return f"format {request.spec.format.name}"
    return None


@functools.cache
def _say_reference_runs(reason: str) -> None:
    _LOG.warning("operands are quantised by the PyTorch reference (same bits, much slower): %s", reason)


@functools.cache
def _say_materialised(reason: str) -> None:
    _LOG.warning("squared ReLU in a pass of its own (same bits, slower): %s", reason)
