"""What the kernels that store codes and scales are held to, on a GPU and in Triton's interpreter.

As gpu_cases.py: each check raises AssertionError with the first difference; run as a script under TRITON_INTERPRET=1
this does the interpreter's share.
"""

from __future__ import annotations

import sys

import new_format_cases
import tall_packing_cases
import torch
from case_tools import SEED, finite, packed_reference, placed, request, run, strided, trials
from numerics_helpers import ALL_SPECS, GOLDEN_MXFP4, GOLDEN_NVFP4, assert_same, load_golden, spec_id

from repro.numerics import (
    CopyRequest,
    QuantSpec,
    make_operand_reference,
    quantize,
    sign_vector,
    unpack,
)
from repro.numerics.formats import FP8_BLOCK, MXFP4, NVFP4
from repro.numerics.gpu.fp8_emulation import emulated_product
from repro.numerics.gpu.fp8_operand import fp8_copies
from repro.numerics.gpu.packing import pack_gpu


def assert_same_packed(what, ours, expected) -> None:
    for part in ("codes", "scales", "amax"):
        assert_same(f"{what}: {part}", getattr(ours, part).cpu(), getattr(expected, part))


def check_packed(x, r, device, what=""):
    what = f"{spec_id(r.spec)} along {r.along} H{r.hadamard} {what}"
    (packed,) = pack_gpu(placed(x, device), (r,))
    assert_same_packed(what, packed, packed_reference(x, r))


def check_spec(spec, along, dtype, device, *, regimes, shape):
    for regime in regimes:
        check_packed(finite(shape, regime, dtype), request(spec, along), device, f"{regime} {shape}")


def check_non_finite(spec, device):
    for bad in (float("nan"), float("inf")):
        x = finite((34, 144), "bf16", torch.float32)
        x[3, 5] = bad
        for along in (0, 1):
            check_packed(x, request(spec, along), device, str(bad))


def check_pair(first, second, device, *, shape=(128, 160), dtype=torch.bfloat16):
    check_pair_of(finite(shape, "mixed_blocks", dtype), first, second, device)


def check_pair_of(x, first, second, device, what=""):
    ours = pack_gpu(placed(x, device), (first, second))
    for packed, r in zip(ours, (first, second), strict=True):
        described = f"of a pair, {spec_id(r.spec)} H{r.hadamard} {x.dtype} {what}"
        assert_same_packed(described, packed, packed_reference(x, r))


def check_strides(pair, dtype, device):
    """The two copies together, and each alone."""
    for what, x in strided(dtype):
        check_pair_of(x, *pair, device, what)
        for r in pair:
            check_packed(x, r, device, what)


def check_golden(name, device):
    """Codes, scales and amax are Transformer Engine's: of its row copy, and its column copy from the same pass."""
    case = load_golden(name)
    if name in GOLDEN_MXFP4:
        asked = {"row": CopyRequest(QuantSpec(MXFP4, MXFP4.tiles_1d), 1)}
    else:
        spec = QuantSpec(NVFP4, tuple(case.config["tile"]))
        rht, has_signs = case.config["rht_on_columnwise"], case.config["random_sign"]
        signs = sign_vector(16, kind="fixed") if rht and has_signs else None
        asked = {"row": CopyRequest(spec, 1), "col": CopyRequest(spec, 0, 16 if rht else 0, signs)}
    stored = pack_gpu(case.x.to(device), tuple(asked.values()))
    for side, packed in zip(asked, stored, strict=True):
        is_two_level = packed.spec.format is NVFP4
        scales = case.arrays[f"{side}_scale_{'e4m3' if is_two_level else 'e8m0'}"]
        assert_same(f"{name} {side}: codes", unpack(packed).codes.cpu(), case.arrays[f"{side}_codes"])
        assert_same(f"{name} {side}: scales", packed.scales.cpu(), scales)
        if is_two_level:
            assert_same(f"{name} {side}: amax", packed.amax.cpu(), case.arrays[f"{side}_amax"])


def check_trials(device, dtypes=(torch.float32, torch.bfloat16)):
    """As in gpu_cases: what other implementations got wrong, stored, and in the layout of FP8 products too."""
    for what, x, spec in trials():
        for dtype in dtypes:
            turned = x.t().contiguous().to(dtype)
            check_packed(x.to(dtype), CopyRequest(spec, 1), device, what)
            check_packed(turned, CopyRequest(spec, 0), device, what)
            if spec.format is FP8_BLOCK:
                for square in (False, True):
                    check_fp8(x.to(dtype), device, square=square)
                    check_fp8(turned, device, square=square)


def check_fp8_strides(square, dtype, device):
    for _, x in strided(dtype):
        check_fp8(x, device, square=square)


def pairs():
    """Row and column copies: with a transform, without, and of square blocks, where one code serves both."""
    for fmt, size in ((NVFP4, 16), (MXFP4, 32), (NVFP4, 0)):
        for rounding in ("rne", "sr"):
            spec = QuantSpec(fmt, fmt.tiles_1d, rounding=rounding)
            yield request(spec, 1), request(spec, 0, size, seed=SEED ^ 0x123456789)
    for fmt in (NVFP4, MXFP4):
        for rounding in ("rne", "sr"):
            spec = QuantSpec(fmt, fmt.tiles_2d, rounding=rounding)
            yield request(spec, 1), request(spec, 0, seed=SEED ^ 0x123456789)
    for fmt, size in ((NVFP4, 16), (MXFP4, 32)):  # the transformed copy first
        spec = QuantSpec(fmt, fmt.tiles_1d)
        yield request(spec, 0, size), request(spec, 1)


def check_fp8(x, device, *, square, rows=True, columns=True):
    """Codes, scales and amax are the reference's, and padding is zeros."""
    copies = fp8_copies(placed(x, device), square=square, rows=rows, columns=columns)
    spec = QuantSpec(FP8_BLOCK, FP8_BLOCK.tiles_2d if square else FP8_BLOCK.tiles_1d)
    assert (copies.rows is None, copies.columns is None) == (not rows, not columns)
    for operand, along in ((copies.rows, 1), (copies.columns, 0)):
        if operand is None:
            continue
        what = f"fp8 {tuple(x.shape)} of strides {x.stride()} square {square} along {along}"
        turned = x if along == 1 else x.t()
        outer, size = turned.shape
        expected = quantize(turned, spec)
        codes, scales = operand.codes.view(torch.uint8).cpu(), operand.scales.cpu()
        assert_same(f"{what}: codes", codes[:outer, :size], expected.codes)
        assert not codes[outer:].any()
        assert not codes[:, size:].any()
        blocks = expected.scales.shape[1]
        scales = scales[:, :blocks].repeat_interleave(128, dim=0) if square else scales.t()
        assert_same(f"{what}: scales", scales[:outer], expected.scales[:outer])
        values = make_operand_reference(x, spec, along=along).values
        assert_same(f"{what}: values", operand.values().cpu(), values if along == 1 else values.t())
        assert_same(f"{what}: amax", copies.amax.cpu(), expected.amax[0])


def check_fp8_regime(regime, square, device):
    check_fp8(finite((128, 256), regime, torch.float32 if square else torch.bfloat16), device, square=square)


def check_fp8_significands(device):
    """Every BF16 significand under every BF16 amax, from the amax down to what rounds to zero, at five magnitudes."""
    significands = 1.0 + torch.arange(128) / 128.0
    for exponent in (0, -80, -133, 70, 126):
        below = 2.0 ** -torch.arange(20.0)
        x = significands * below[:, None, None] * torch.ones(1, 128, 1)
        x[:, :, 0] = significands
        x[:, :, 1::2] *= -1.0
        x = (x.reshape(-1, 128).double() * 2.0**exponent).to(torch.bfloat16)
        check_fp8(x, device, square=False, columns=False)
        check_fp8(x.t().contiguous(), device, square=False, rows=False)


def check_emulated_product(shape, square, dtype, device):
    """Against exact sums: FP32 additions in any order, each cut at 2^-23, and one rounding."""
    m, n, k = shape
    a = fp8_copies(finite((m, k), "normal", torch.bfloat16).to(device)).rows
    b = fp8_copies(finite((n, k), "normal", torch.float32, seed=2).to(device), square=square).rows
    ours = emulated_product(a, b, dtype=dtype)
    assert (ours.shape, ours.dtype) == ((m, n), dtype)
    left, right = a.values().double(), b.values().double()
    exact = left @ right.t()
    error = (k + 4) * 2.0**-23 * (left.abs() @ right.abs().t())
    low, high = ((exact + e).float().to(dtype) for e in (-error, error))
    assert ((ours >= low) & (ours <= high)).all()


def check_fp8_non_finite(square, device):
    for bad in (float("nan"), float("inf")):
        x = finite((130, 300), "normal", torch.float32)
        x[3, 7] = bad
        check_fp8(x, device, square=square)


def interpreter_checks():
    """(name, call): every branch of the kernels once or twice; the device gets the full product."""
    for i, spec in enumerate(ALL_SPECS):
        along, dtype = i % 2, (torch.float32, torch.bfloat16)[i // 2 % 2]
        shape = (32, 144) if i % 3 else (34, 100)
        yield (
            f"packed {spec_id(spec)}",
            lambda s=spec, a=along, d=dtype, n=shape: check_spec(s, a, d, "cpu", regimes=("ties",), shape=n),
        )
    for spec in (ALL_SPECS[0], QuantSpec(MXFP4, (1, 32))):
        yield f"non-finite {spec_id(spec)}", lambda s=spec: check_non_finite(s, "cpu")
    for i, pair in enumerate(pairs()):
        yield f"pair {i}", lambda p=pair: check_pair(*p, "cpu")
        yield (
            f"pair {i} FP32",
            lambda p=pair: check_pair(*p, "cpu", shape=(32, 80), dtype=torch.float32),
        )
        if i in (0, 6):  # along each dimension, and square blocks
            dtype = torch.float32 if i == 0 else torch.bfloat16
            yield f"pair {i} strides", lambda p=pair, d=dtype: check_strides(p, d, "cpu")
    for name in GOLDEN_NVFP4 + GOLDEN_MXFP4:
        yield f"golden {name}", lambda n=name: check_golden(n, "cpu")
    yield "trials", lambda: check_trials("cpu", dtypes=[torch.float32])
    yield from tall_packing_cases.interpreter_checks()
    yield from new_format_cases.interpreter_checks()
    for square in (False, True):
        for regime in ("every_exponent", "sparse"):
            yield f"fp8 {regime} {square}", lambda r=regime, s=square: check_fp8_regime(r, s, "cpu")
        x = finite((3, 300), "normal", torch.float32)
        for rows, columns in ((True, True), (True, False), (False, True)):
            yield (
                f"fp8 rows {rows} columns {columns} {square}",
                lambda s=square, r=rows, c=columns, x=x: check_fp8(x, "cpu", square=s, rows=r, columns=c),
            )
        dtype = torch.float32 if square else torch.bfloat16
        yield f"fp8 strides {square}", lambda s=square, d=dtype: check_fp8_strides(s, d, "cpu")
        yield f"fp8 non-finite {square}", lambda s=square: check_fp8_non_finite(s, "cpu")
        yield (
            f"fp8 emulated product {square}",
            lambda s=square: check_emulated_product((130, 300, 200), s, torch.float32, "cpu"),
        )


if __name__ == "__main__":
    sys.exit(run(interpreter_checks()))
