"""What an emulated GEMM consumes: a quantised operand as exact numbers in the operand's own layout.

Paper sections 2 and 4. For y = x w^T contracted along K with operands quantised along K,

    y = (X W^T) * s_x * s_w,   X = code values x block scales of x, exact; s = FP32 tensor scales

E2M1 x E4M3 has at most 6 significant bits and lies in 2^-10 .. 2688, so X is exact even in BF16 and the
product differs from a FP4 tensor core's by the order of FP32 accumulation only. Folding the tensor scale
into X before the product would round it; hence it stays outside.

Shapes: x [M, N]; `along` says which dimension the GEMM contracts: 1-D blocks and Hadamard groups run along
it (0: down the rows, 1: along the columns), without a transposed copy.

Three implementations with the same bits: `make_operand_reference` here (PyTorch, any device), a fused CPU kernel
(repro/numerics/cpu), and fused Triton kernels (repro/numerics/gpu). `make_operand` takes the kernel where it can be
used. `make_operand_pair` makes two operands of one tensor, on a GPU in one pass over it; of a squared ReLU or its
gradient (`source`) the GPU's passes work it out while they load.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from repro.numerics.checks import check_seed, check_signs, check_spec, check_tensor
from repro.numerics.formats import QuantSpec
from repro.numerics.hadamard import SIZES, check_size, transform
from repro.numerics.quantize import quantize
from repro.numerics.random_bits import random_bits
from repro.numerics.scaling import gemm_scale
from repro.numerics.source import Source, materialise

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Operand:
    """A quantised [M, N] operand."""

    #: [M, N]: element value x block scale, exact (FP32 scales: their FP32 product). float32; from the GPU kernels
    #: bfloat16 for formats whose values are all BF16 numbers.
    values: Tensor
    #: float32 scalar that the GEMM's output is multiplied with; None for formats without a tensor scale.
    scale: Tensor | None
    #: float32 scalar: max |x| after the Hadamard transform; NaN or infinite if x was.
    amax: Tensor


@dataclass(frozen=True)
class CopyRequest:
    """What `make_operand` is asked for, apart from the tensor. Raises as `check_request` does."""

    spec: QuantSpec
    along: int
    hadamard: int = 0
    #: float32 [hadamard], or None for all +1. Without effect where there is no transform.
    signs: Tensor | None = None
    #: Given exactly when spec.rounding is "sr": an integer, or one int64 on the tensor's device with the same bits.
    seed: int | Tensor | None = None

    def __post_init__(self) -> None:
        check_request(self.spec, self.along, self.hadamard, self.signs, self.seed)


def check_request(
    spec: QuantSpec, along: int, hadamard: int, signs: Tensor | None, seed: int | Tensor | None
) -> None:
    """Raise ValueError where the arguments of `make_operand` do not fit together, TypeError for another kind of
    object. Whether they fit the tensor is another question."""
    # A training step makes hundreds of requests: what is right passes without a call.
    if type(spec) is not QuantSpec:
        check_spec(spec)
    if along not in (0, 1) or isinstance(along, float):
        raise ValueError(f"an operand's blocks run along dimension 0 or 1, not {along!r}")
    if (seed is not None) != (spec.rounding == "sr"):
        raise ValueError(f"rounding {spec.rounding!r} {'needs a' if seed is None else 'takes no'} seed")
    if seed is not None and type(seed) is not int:
        check_seed(seed)
    if hadamard:
        if type(hadamard) is not int or hadamard not in SIZES:
            check_size(hadamard)
        if signs is not None and (type(signs) is not Tensor or not signs.dtype.is_signed):
            check_signs(signs)
    elif type(hadamard) is not int:
        raise TypeError(f"hadamard is the size of a transform, or 0 for none; got {hadamard!r}")


def check_matrix(x: Tensor, *seeds: int | Tensor | None) -> None:
    """Raise ValueError where x is no matrix or a seed in a tensor is not for it, TypeError where x is no tensor."""
    if not isinstance(x, Tensor):
        check_tensor(x)
    if x.dim() != 2:
        raise ValueError(f"an operand is a matrix; got shape {tuple(x.shape)}")
    for seed in seeds:
        if seed is not None and not fits(seed, x):
            given = f"{seed.numel()} {str(seed.dtype).removeprefix('torch.')} on {seed.device}"
            raise ValueError(f"a seed in a tensor is one int64 on {x.device}; got {given}")


def fits(seed: int | Tensor | None, x: Tensor) -> bool:
    """Whether a seed, if it is a tensor, is one that x's kernels can read."""
    if not isinstance(seed, Tensor):
        return True
    return seed.dtype == torch.int64 and seed.numel() == 1 and seed.device == x.device


def make_operand_reference(
    x: Tensor,
    spec: QuantSpec,
    *,
    along: int,
    hadamard: int = 0,
    signs: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> Operand:
    """Quantise x [M, N] (float32 or bfloat16) for a GEMM that contracts its dimension `along`.

    `hadamard` > 0: transform groups of that size along `along` with `signs` (None: all +1) and round to BF16
    first; that dimension must be a multiple of it, or ValueError.
    `seed`: given exactly when spec.rounding is "sr"; element (i, j) takes byte i*N + j of
    `random_bits(seed, x.shape)`, whatever `along` is. A seed in a tensor gives the same bits as the integer, and is
    not read back from a GPU: a captured CUDA graph takes what the tensor holds when it is replayed.
    Sizes that are no multiple of the tile are padded with zeros and cut again: exact.
    Results carry no gradient. NaN and Inf go through, and show in `amax`.
    """
    check_matrix(x, seed)
    check_request(spec, along, hadamard, signs, seed)
    bits = None if seed is None else random_bits(seed, x.shape, x.device)
    if hadamard:
        x = transform(x, hadamard, signs, dim=along)
    if along == 0:
        x = x.t()
        bits = None if bits is None else bits.t()
    quantized = quantize(x, spec, random_bits=bits)
    values = quantized.block_values()
    amax = quantized.amax.squeeze(0)
    return Operand(values if along == 1 else values.t().contiguous(), gemm_scale(amax, spec), amax)


def make_operand(
    x: Tensor,
    spec: QuantSpec,
    *,
    along: int,
    hadamard: int = 0,
    signs: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> Operand:
    """`make_operand_reference`, to the bit, by the fastest implementation for x's device.

    On the CPU the fused C++ kernel, on CUDA the Triton kernels (which give BF16 values where they are exact); one log
    line says so where a device has no kernel and PyTorch runs.
    """
    from repro.numerics.cpu import make_operand_cpu  # it builds an Operand, so it imports this module

    check_matrix(x, seed)
    check_request(spec, along, hadamard, signs, seed)
    if x.is_cpu:
        seed = int(seed) if isinstance(seed, Tensor) else seed
        return make_operand_cpu(x, spec, along=along, hadamard=hadamard, signs=signs, seed=seed)
    if x.is_cuda:
        if (gpu := gpu_kernels()) is not None:  # without them that has said so
            return gpu.make_operand_gpu(x, spec, along=along, hadamard=hadamard, signs=signs, seed=seed)
    else:
        _say_reference_runs(x.device.type)
    return make_operand_reference(x, spec, along=along, hadamard=hadamard, signs=signs, seed=seed)


def make_operand_pair(source: Source, first: CopyRequest, second: CopyRequest) -> tuple[Operand, Operand]:
    """Two operands of `source` [M, N], as two calls of `make_operand` on `materialise(source)` give them.

    Raises as they do, and TypeError for anything but a tensor (or what stands for one) and two requests.
    """
    try:
        x = source if isinstance(source, Tensor) else source.value
        check_matrix(x, first.seed, second.seed)
    except AttributeError:
        kinds = ", ".join(type(given).__name__ for given in (source, first, second))
        raise TypeError(
            "a pair is made of a torch tensor, SquaredRelu or SquaredReluGradient, and two CopyRequests; "
            f"not of {kinds}"
        ) from None
    if x.is_cuda and (gpu := gpu_kernels()) is not None:
        return gpu.make_operand_pair_gpu(source, first, second)
    x = materialise(source)
    one, other = (
        make_operand(x, r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=r.seed)
        for r in (first, second)
    )
    return one, other


@functools.cache
def gpu_kernels() -> ModuleType | None:
    """The Triton kernels; None, after the one log line that a process prints, where triton is not installed."""
    try:
        from repro.numerics.gpu import binding
    except ImportError as reason:
        _LOG.warning(
            "no Triton kernels: on the GPU the PyTorch reference quantises, and FP8 products are emulated by FP32 "
            "ones (exact, much slower): %s",
            reason,
        )
        return None
    return binding


@functools.cache
def _say_reference_runs(device_type: str) -> None:
    _LOG.warning("operands on %s are quantised by the PyTorch reference (not fused)", device_type)
