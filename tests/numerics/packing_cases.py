"""What the kernels that store codes and scales are held to, on a GPU and in Triton's interpreter.

As gpu_cases.py: each check raises AssertionError with the first difference; run as a script under TRITON_INTERPRET=1
this does the interpreter's share.
"""

from __future__ import annotations

import sys

import torch
from gpu_cases import LAST, SEED, finite, request, run, tall
from numerics_helpers import ALL_SPECS, assert_same, spec_id

from repro.numerics import CopyRequest, QuantSpec, make_operand_reference, make_packed, quantize
from repro.numerics.formats import FP8_BLOCK, MXFP4, NVFP4
from repro.numerics.gpu.fp8_emulation import emulated_product
from repro.numerics.gpu.fp8_operand import fp8_copies
from repro.numerics.gpu.packing import pack_gpu


def packed_reference(x, r):
    """On the CPU, where PyTorch packs."""
    return make_packed(x, r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=r.seed)


def assert_same_packed(what, ours, expected) -> None:
    for part in ("codes", "scales", "amax"):
        assert_same(f"{what}: {part}", getattr(ours, part).cpu(), getattr(expected, part))


def check_packed(x, r, device, what=""):
    what = f"{spec_id(r.spec)} along {r.along} H{r.hadamard} {what}"
    (packed,) = pack_gpu(x.to(device), (r,))
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
    x = finite(shape, "mixed_blocks", dtype)
    ours = pack_gpu(x.to(device), (first, second))
    for packed, r in zip(ours, (first, second), strict=True):
        assert_same_packed(f"of a pair, {spec_id(r.spec)}", packed, packed_reference(x, r))


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


def check_fp8(x, device, *, square, rows=True, columns=True):
    """Codes, scales and amax are the reference's, and padding is zeros."""
    copies = fp8_copies(x.to(device), square=square, rows=rows, columns=columns)
    spec = QuantSpec(FP8_BLOCK, FP8_BLOCK.tiles_2d if square else FP8_BLOCK.tiles_1d)
    assert (copies.rows is None, copies.columns is None) == (not rows, not columns)
    for operand, along in ((copies.rows, 1), (copies.columns, 0)):
        if operand is None:
            continue
        what = f"fp8 {tuple(x.shape)} square {square} along {along}"
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


def check_last_rows(spec, along, device, *, rows, columns):
    """As in gpu_cases: the last rows of a tall tensor are stored as those of a small one are, all others as zeros."""
    x = tall(rows, columns, torch.bfloat16, device)
    (packed,) = pack_gpu(x, (CopyRequest(spec, along),))
    expected = make_packed(x[-LAST:].cpu(), spec, along=along)
    for part in ("codes", "scales"):
        ours, small = getattr(packed, part), getattr(expected, part)
        size = small.shape[1 - along]
        last, others = (
            ours.narrow(1 - along, -size, size),
            ours.narrow(1 - along, 0, ours.shape[1 - along] - size),
        )
        assert_same(f"{part} along {along}", last.cpu(), small)
        assert torch.count_nonzero(others) == 0, part


def check_fp8_last_rows(device, *, rows, columns):
    x = tall(rows, columns, torch.bfloat16, device)
    ours, small = (fp8_copies(part, columns=True) for part in (x, x[-LAST:]))
    codes, last = ours.rows.codes.view(torch.uint8), small.rows.codes.view(torch.uint8)
    assert torch.equal(codes[-LAST:], last)
    assert torch.count_nonzero(codes[:-LAST]) == 0
    assert torch.equal(ours.rows.scales[:, -LAST:], small.rows.scales)
    codes, last = ours.columns.codes.view(torch.uint8), small.columns.codes.view(torch.uint8)
    assert torch.equal(codes[:, -LAST:], last)
    assert torch.count_nonzero(codes[:, :-LAST]) == 0
    assert torch.equal(ours.columns.scales[-1:], small.columns.scales)


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
    for along in (0, 1):
        spec = QuantSpec(NVFP4, (1, 16))
        yield (
            f"last rows along {along}",
            lambda s=spec, a=along: check_last_rows(s, a, "cpu", rows=256, columns=144),
        )
    yield "fp8 last rows", lambda: check_fp8_last_rows("cpu", rows=256, columns=144)
    for square in (False, True):
        for regime in ("every_exponent", "sparse"):
            yield f"fp8 {regime} {square}", lambda r=regime, s=square: check_fp8_regime(r, s, "cpu")
        x = finite((3, 300), "normal", torch.float32)
        for rows, columns in ((True, True), (True, False), (False, True)):
            yield (
                f"fp8 rows {rows} columns {columns} {square}",
                lambda s=square, r=rows, c=columns, x=x: check_fp8(x, "cpu", square=s, rows=r, columns=c),
            )
        yield f"fp8 non-finite {square}", lambda s=square: check_fp8_non_finite(s, "cpu")
        yield (
            f"fp8 emulated product {square}",
            lambda s=square: check_emulated_product((130, 300, 200), s, torch.float32, "cpu"),
        )


if __name__ == "__main__":
    sys.exit(run(interpreter_checks()))
