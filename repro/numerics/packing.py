"""Two 4-bit codes to a byte: the form in which quantised tensors are stored, and how many bytes it takes.

Transformer Engine's order: byte j of a row = code[2j] | code[2j + 1] << 4. Paper section 2: NVFP4 takes
"about half" the memory of FP8; `Packed.nbytes` says how much.

    make_packed       x [M, N] -> Packed, on a GPU in one pass over x (repro/numerics/gpu/packing.py)
    make_packed_pair  two copies of one tensor, e.g. along its rows and along its columns, on a GPU in one pass
    pack, unpack      between `Quantized`, one code a byte, and `Packed`

Does not: swizzle scales into the layout a particular GEMM kernel wants.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from repro.numerics.checks import check_tensor
from repro.numerics.formats import QuantSpec
from repro.numerics.hadamard import transform
from repro.numerics.operand import CopyRequest, check_matrix, gpu_kernels
from repro.numerics.quantize import Quantized, quantize
from repro.numerics.random_bits import random_bits

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Packed:
    """A quantised tensor as it is stored. Codes of 4-bit formats share bytes; all else is as in `Quantized`."""

    #: uint8 [..., K / 2], or [..., K] for formats of 8 bits; of `make_packed` [M, K / 2] or [M, K].
    codes: Tensor
    #: [M padded to the tile, blocks]: uint8 codes of the scale's format; float32 for FP32 scales.
    scales: Tensor
    #: float32 [1]: max |x|, after the Hadamard transform if there was one.
    amax: Tensor
    spec: QuantSpec

    @property
    def num_rows(self) -> int:
        """M, the product of all dimensions but the last."""
        return self.codes.numel() // self.codes.shape[-1]

    @property
    def num_columns(self) -> int:
        """K, the dimension along which blocks run and codes are packed."""
        return self.codes.shape[-1] * (2 if self.spec.format.element.bits == 4 else 1)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales, and of the amax where it is part of the value.

        Scales count once per row and block, as they are kept.
        """
        amax_bytes = self.amax.nbytes if self.spec.format.tensor_scale else 0
        return self.codes.nbytes + self.scales.nbytes + amax_bytes


def pack_codes(codes: Tensor) -> Tensor:
    """uint8 codes 0..15 [..., K] to packed bytes [..., K/2]. Raises ValueError for an odd K, a code > 15 or another
    dtype, TypeError for what is no tensor."""
    _check_bytes(codes, "codes")
    _check_even(codes.shape[-1])
    if codes.numel() and int(codes.max()) > 15:
        raise ValueError(f"code {int(codes.max())} does not fit 4 bits")
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack_codes(packed: Tensor) -> Tensor:
    """Packed bytes [..., K/2] back to codes [..., K]; the inverse of `pack_codes`, and as strict about the dtype."""
    _check_bytes(packed, "packed codes")
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def pack(quantized: Quantized) -> Packed:
    """The stored form of a quantised tensor [..., K]. Raises as `pack_codes`, and TypeError for anything else."""
    if not isinstance(quantized, Quantized):
        raise TypeError(f"pack takes what quantize returns, a Quantized, not {type(quantized).__name__}")
    four_bit = quantized.spec.format.element.bits == 4
    codes = pack_codes(quantized.codes) if four_bit else quantized.codes
    return Packed(codes, quantized.scales, quantized.amax, quantized.spec)


def unpack(packed: Packed) -> Quantized:
    """The quantised tensor again: the inverse of `pack`. Raises TypeError for anything but a `Packed`."""
    if not isinstance(packed, Packed):
        raise TypeError(
            f"unpack takes what pack or make_packed returns, a Packed, not {type(packed).__name__}"
        )
    four_bit = packed.spec.format.element.bits == 4
    codes = unpack_codes(packed.codes) if four_bit else packed.codes
    return Quantized(codes, packed.scales, packed.amax, packed.spec)


def make_packed(
    x: Tensor,
    spec: QuantSpec,
    *,
    along: int = 1,
    hadamard: int = 0,
    signs: Tensor | None = None,
    seed: int | Tensor | None = None,
) -> Packed:
    """The stored form of what `make_operand` makes of x [M, N] with these arguments.

    `along` 1: of x, packed along its columns. `along` 0: of x^T [N, M], packed along x's rows, blocks and transform
    too. On a GPU by the Triton kernel, with the bits of the PyTorch reference; where a GPU has to take the reference,
    one log line says so.
    Raises ValueError as `make_operand` does, and for an odd number of 4-bit codes along `along`.
    """
    return _make(x, (CopyRequest(spec, along, hadamard, signs, seed),))[0]


def make_packed_pair(x: Tensor, first: CopyRequest, second: CopyRequest) -> tuple[Packed, Packed]:
    """Two stored copies of x [M, N], as two calls of `make_packed` give them; on a GPU x is read once for both.

    Raises as `make_packed` does, and TypeError for anything but two requests.
    """
    for request in (first, second):
        if not isinstance(request, CopyRequest):
            raise TypeError(f"a packed pair is asked for by two CopyRequests, not {type(request).__name__}")
    one, other = _make(x, (first, second))
    return one, other


def _make(x: Tensor, requests: tuple[CopyRequest, ...]) -> tuple[Packed, ...]:
    for r in requests:
        check_matrix(x, r.seed)
        if r.spec.format.element.bits == 4:
            _check_even(x.shape[r.along])
    if x.is_cuda and (gpu := gpu_kernels()) is not None:
        reason = next(filter(None, (gpu._refusal(x, r) for r in requests)), None)
        if reason is None:
            from repro.numerics.gpu.packing import pack_gpu

            return pack_gpu(x, requests)
        _say_reference_runs(reason)
    return tuple(_by_reference(x, r) for r in requests)


def _by_reference(x: Tensor, request: CopyRequest) -> Packed:
    r = request
    bits = None if r.seed is None else random_bits(r.seed, x.shape, x.device)
    if r.hadamard:
        x = transform(x, r.hadamard, r.signs, dim=r.along)
    if r.along == 0:
        x, bits = x.t(), None if bits is None else bits.t()
    return pack(quantize(x, r.spec, random_bits=bits))


def _check_bytes(codes: Tensor, name: str) -> None:
    check_tensor(codes, name)
    if codes.dtype != torch.uint8 or codes.dim() == 0:
        given = f"{str(codes.dtype).removeprefix('torch.')} of shape {tuple(codes.shape)}"
        raise ValueError(f"{name} are uint8 [..., K], not {given}")


def _check_even(num_codes: int) -> None:
    if num_codes % 2:
        raise ValueError(f"two codes share a byte: K must be even, got {num_codes}")


@functools.cache
def _say_reference_runs(reason: str) -> None:
    _LOG.warning("tensors are packed by the PyTorch reference (same bits, much slower): %s", reason)
