"""Quantise a tensor to a block format: codes, scales, amax, and back.

Paper (arXiv 2509.25149) section 2 and Appendix B, in the order of Transformer Engine's Python reference:

 1. a = max |x| over the whole tensor                              (before padding)
 2. pad rows and columns with zeros to multiples of the tile       (exact: a zero changes no amax)
 3. b = max |x| over each tile
 4. block scales from a and b                                      (scaling.py)
 5. y = x brought onto the element's grid, clamped to its range
 6. codes = y rounded                                              (rounding.py)
 7. padding removed from the codes; the scales keep the padded rows

Stochastic rounding is unbiased in step 6 alone. Where a two-level block scale was rounded down in step 4, the block's
largest values lie above the grid, and the clamp of step 5 shortens them: NVFP4 shrinks a normal gradient by 0.4 % in
expectation, MXFP4, whose scales are rounded up, by nothing (tests/numerics/test_quantize.py).

Shapes: x is [..., N], read as [M, N]; tile (th, tw); codes as x; scales [ceil(M/th)*th, ceil(N/tw)], one
per row and block, those of a square tile repeated in its th rows (what a GEMM with 1-D blocks reads).

Does not: transpose, transform or pack (operand.py, hadamard.py, packing.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from repro.numerics.checks import check_spec, check_tensor
from repro.numerics.formats import QuantSpec
from repro.numerics.rounding import decode, round_to_codes
from repro.numerics.scaling import block_scales, fp32

_FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Quantized:
    """A quantised tensor."""

    #: uint8, shape of x: one element code per byte, e.g. E2M1's 0..15 with bit 3 the sign.
    codes: Tensor
    #: [rows padded to the tile, blocks]: uint8 codes of the scale's format; float32 for FP32 scales.
    scales: Tensor
    #: float32 [1]: max |x| of the whole tensor; NaN if x holds one.
    amax: Tensor
    spec: QuantSpec

    def block_values(self) -> Tensor:
        """Element value x block scale, float32, shape of x; no tensor scale.

        Exact also in BF16 when the scale is E4M3 or UE8M0: at most 6 significant bits.
        """
        num_rows = self.codes.numel() // self.codes.shape[-1]
        num_columns = self.codes.shape[-1]
        scales = self.scales[:num_rows]
        if scales.dtype == torch.uint8:
            scales = decode(scales, self.spec.format.scale)
        per_value = scales.repeat_interleave(self.spec.tile[1], dim=1)[:, :num_columns]
        return decode(self.codes, self.spec.format.element) * per_value.reshape(self.codes.shape)

    def dequantize(self) -> Tensor:
        """The values the codes stand for: float32, shape of x.

        NVFP4: fl32(fl32(value * scale) * fl32(amax / 2688)), the order of Transformer Engine's tests. Below
        amax 7.9e-36 this is too small, as it is there, because the elements were encoded with a clamped
        s_enc; `Operand.scale` is right there.
        """
        values = self.block_values()
        if not self.spec.format.tensor_scale:
            return values
        return values * (self.amax / fp32(self.spec.format.tensor_max, self.amax))


def count_nonfinite(x: Tensor) -> int:
    """How many elements of x are NaN or infinite. Raises TypeError for what is no tensor."""
    check_tensor(x)
    return int(x.numel() - x.isfinite().sum())


def quantize(x: Tensor, spec: QuantSpec, *, random_bits: Tensor | None = None) -> Quantized:
    """Quantise x [..., N] (float32, bfloat16 or float16; any strides) with blocks along its last dimension.

    `random_bits`: uint8 of x's shape, given exactly when spec.rounding is "sr".
    Sizes that are no multiple of the tile are padded with zeros, which is exact.
    Zeros give codes 0 and (NVFP4) scale byte 0. NaN gives code 0 under a NaN scale, so that the
    dequantised tensor is NaN, not plausible. Infinite values saturate their code; amax stays infinite.
    No gradient flows. Raises ValueError for an empty or 0-d tensor, another dtype, or bits that do not fit the
    rounding; TypeError for what is no tensor or no QuantSpec.
    """
    _check(x, spec, random_bits)
    num_columns = x.shape[-1]
    x2d = x.detach().reshape(-1, num_columns).float()  # [M, N]
    num_rows = x2d.shape[0]
    tile_rows, tile_columns = spec.tile
    block_rows, block_columns = -(-num_rows // tile_rows), -(-num_columns // tile_columns)
    pad_rows, pad_columns = block_rows * tile_rows - num_rows, block_columns * tile_columns - num_columns

    amax = x2d.abs().amax()
    tiles = _pad(x2d, pad_rows, pad_columns).reshape(block_rows, tile_rows, block_columns, tile_columns)
    scales = block_scales(tiles.abs().amax(dim=(1, 3)), amax, spec)
    y = scales.to_grid(tiles)
    if random_bits is not None:
        random_bits = _pad(random_bits.reshape(-1, num_columns), pad_rows, pad_columns).reshape(y.shape)
    codes = round_to_codes(y, spec.format.element, random_bits)
    codes = codes.reshape(num_rows + pad_rows, num_columns + pad_columns)[:num_rows, :num_columns]
    return Quantized(
        codes=codes.reshape(x.shape).contiguous(),
        scales=scales.stored.repeat_interleave(tile_rows, dim=0),
        amax=amax.reshape(1),
        spec=spec,
    )


def _pad(x2d: Tensor, pad_rows: int, pad_columns: int) -> Tensor:
    if pad_rows == pad_columns == 0:
        return x2d
    return torch.nn.functional.pad(x2d, (0, pad_columns, 0, pad_rows))


def _check(x: Tensor, spec: QuantSpec, random_bits: Tensor | None) -> None:
    check_tensor(x)
    check_spec(spec)
    if x.dtype not in _FLOAT_DTYPES:
        given = str(x.dtype).removeprefix("torch.")
        remedy = "" if x.is_complex() else "; x.float() is float32"
        raise ValueError(f"what is quantised is float32, bfloat16 or float16, not {given}{remedy}")
    if x.dim() == 0 or x.numel() == 0:
        raise ValueError(f"quantize needs at least one row with one value, got shape {tuple(x.shape)}")
    if spec.rounding == "rne" and random_bits is not None:
        raise ValueError("random_bits are given but the rounding is 'rne'")
    if spec.rounding == "sr":
        if random_bits is None:
            raise ValueError(
                "stochastic rounding needs random_bits: repro.numerics.random_bits(seed, x.shape)"
            )
        check_tensor(random_bits, "random_bits")
        if random_bits.dtype != torch.uint8 or random_bits.shape != x.shape:
            raise ValueError(
                f"random_bits must be uint8 of shape {tuple(x.shape)}, "
                f"got {random_bits.dtype} {tuple(random_bits.shape)}"
            )
