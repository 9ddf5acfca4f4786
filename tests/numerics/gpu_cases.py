"""What the Triton kernels are held to, on a GPU (test_gpu_device) and in the interpreter (test_gpu_interpreter).

Each check raises AssertionError with the first difference. Run as a script under TRITON_INTERPRET=1 it does the
interpreter's share and prints one line per check.
"""

from __future__ import annotations

import dataclasses
import sys

import pairs_cases
import source_cases
import tall_cases
import torch
from case_tools import (
    SEED,
    assert_same_operand,
    finite,
    packed_reference,
    placed,
    reference,
    request,
    run,
    strided,
    trials,
)
from numerics_helpers import (
    ALL_SPECS,
    GOLDEN_MXFP4,
    GOLDEN_NVFP4,
    REGIMES,
    assert_same,
    load_golden,
    make_tensor,
    spec_id,
)

from repro.numerics import CopyRequest, QuantSpec, random_bits, seed_tensor, sign_vector
from repro.numerics.formats import FP8_BLOCK, MXFP4, MXFP8, NVFP4
from repro.numerics.gpu import binding, make_operand_gpu, make_operand_pair_gpu, passes
from repro.numerics.gpu.packing import pack_gpu
from repro.numerics.hadamard import SIZES, scale_factors


def check(x, r, device, what=""):
    """One operand against the reference on the CPU; the kernel must not have gone to the reference itself."""
    on_device = placed(x, device)
    assert binding._refusal(on_device, r) is None
    ours = make_operand_gpu(on_device, r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=r.seed)
    exact = torch.bfloat16 if r.spec.format in (NVFP4, MXFP4) else torch.float32
    assert ours.values.dtype == exact, ours.values.dtype
    assert ours.values.is_contiguous()
    assert_same_operand(f"{spec_id(r.spec)} along {r.along} H{r.hadamard} {what}", ours, reference(x, r))


def check_spec(spec, along, dtype, device, *, regimes=REGIMES, shape=(96, 160)):
    for regime in regimes:
        check(finite(shape, regime, dtype), request(spec, along), device, f"{regime} {dtype}")


def check_transform(spec, along, size, device, *, regimes=("bf16", "mixed_blocks", "normal")):
    kinds = ("fixed", "random", "none")
    for regime, kind in zip(regimes, kinds, strict=False):
        shape = (max(size, 32), 160 // size * size or size)
        shape = shape if along == 0 else shape[::-1]
        check(make_tensor(2, shape, regime), request(spec, along, size, kind), device, f"{regime} {kind}")


def check_odd_size(spec, along, shape, device):
    check(make_tensor(3, shape, "bf16").bfloat16(), request(spec, along), device, str(shape))


def check_strides(spec, along, device):
    for what, x in strided():
        check(x, request(spec, along), device, what)


def check_golden(name, device):
    case = load_golden(name)
    fmt, tile = (MXFP4, MXFP4.tiles_1d) if name in GOLDEN_MXFP4 else (NVFP4, tuple(case.config["tile"]))
    spec = QuantSpec(fmt, tile)
    check(case.x, CopyRequest(spec, 1), device, name)
    if fmt is NVFP4 and case.config["rht_on_columnwise"]:
        signs = sign_vector(16, kind="fixed") if case.config["random_sign"] else None
        check(case.x, CopyRequest(spec, 0, 16, signs), device, name)


def check_trials(device):
    for what, x, spec in trials():
        for dtype in (torch.float32, torch.bfloat16):
            check(x.to(dtype), CopyRequest(spec, 1), device, what)
            check(x.t().contiguous().to(dtype), CopyRequest(spec, 0), device, what)


def check_non_finite(fmt, tile, bad, device):
    x = make_tensor(7, (64, 112), "bf16")
    x[37, 101] = bad
    for along, hadamard in ((1, 0), (0, 16)):
        r = request(QuantSpec(fmt, tile), along, hadamard)
        check(x, r, device, f"{bad}")
        assert not make_operand_gpu(
            x.to(device), r.spec, along=along, hadamard=hadamard, signs=r.signs
        ).amax.isfinite()


def check_infinities_that_cancel(device):
    """Two that meet in the last round of the transform: their difference is NaN, and so is the amax."""
    x = make_tensor(7, (64, 112), "bf16")
    x[33, 101] = x[41, 101] = float("inf")
    r = request(QuantSpec(NVFP4, (1, 16)), 0, 16)
    assert reference(x, r).amax.isnan()
    for dtype in (torch.float32, torch.bfloat16):
        check(x.to(dtype), r, device, "infinities that cancel")


def check_zeros(spec, device):
    for along in (0, 1):
        check(torch.zeros(32, 48), request(spec, along), device, "zeros")
        check(-torch.zeros(32, 48), request(spec, along, 16), device, "minus zeros, transformed")


def check_pair(first, second, device, *, shape=(128, 160), dtype=torch.bfloat16):
    check_pair_of(finite(shape, "mixed_blocks", dtype), first, second, device)


def check_pair_of(x, first, second, device, what=""):
    ours = make_operand_pair_gpu(placed(x, device), first, second)
    for which, operand, r in zip(("first", "second"), ours, (first, second), strict=True):
        described = f"{which} of a pair, {spec_id(r.spec)} H{r.hadamard} {x.dtype} {what}"
        assert_same_operand(described, operand, reference(x, r))


def check_pair_strides(first, second, dtype, device):
    for what, x in strided(dtype):
        check_pair_of(x, first, second, device, what)


def pairs():
    """The pairs that recipes ask for: row copy, and column copy with or without a transform; and others."""
    other = SEED ^ 0x123456789
    kinds = ((NVFP4, 16), (MXFP4, 32), (FP8_BLOCK, 0), (NVFP4, 128), (MXFP8, 0), (NVFP4, 2), (NVFP4, 4))
    for fmt, size in kinds:
        for rounding in ("rne", "sr"):
            spec = QuantSpec(fmt, fmt.tiles_1d, rounding=rounding)
            yield request(spec, 1), request(spec, 0, size, seed=other)
    for along in (0, 1):  # both along one dimension
        spec = QuantSpec(NVFP4, (1, 16), rounding="sr")
        yield request(QuantSpec(NVFP4, (1, 16)), along), request(spec, along, 16)
        yield request(spec, along), request(spec, along, seed=other)
    yield request(QuantSpec(NVFP4, (1, 16)), 1), request(QuantSpec(NVFP4, (1, 16), rounding="sr"), 0)
    yield request(QuantSpec(NVFP4, (1, 16)), 1, 4), request(QuantSpec(NVFP4, (1, 16)), 0, 16)
    yield request(QuantSpec(NVFP4, (1, 16)), 1), request(QuantSpec(MXFP4, (1, 32)), 0)


def check_noise_by_element(device):
    """Between 0 and one step up, P = bits / 256: the byte of element (i, j) decides, whatever `along` is."""
    x = torch.full((48, 80), 0.25)
    x[0, 0] = 6.0
    spec = QuantSpec(NVFP4, (16, 16), rounding="sr")
    for along in (0, 1):
        values = make_operand_gpu(x.to(device), spec, along=along, seed=SEED).values.float().cpu()
        expected = torch.where(random_bits(SEED, x.shape) >= 128, 0.5, 0.0)[:16, :16] * 448
        expected[0, 0] = 6.0 * 448
        assert torch.equal(values[:16, :16], expected)


def check_seed_tensor(device):
    """A seed read from the device, as the second of two so that its address is not aligned: the same bits."""
    x = finite((32, 144), "bf16", torch.bfloat16)
    row = request(QuantSpec(NVFP4, (1, 16), rounding="sr"), 1)
    column = request(QuantSpec(NVFP4, (1, 16), rounding="sr"), 0, 16, seed=2**31)
    seeds = seed_tensor([0, row.seed, column.seed], device)
    for r, seed in ((row, seeds[1]), (column, seeds[2:])):
        ours = make_operand_gpu(
            x.to(device), r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=seed
        )
        assert_same_operand("seed in a tensor", ours, reference(x, r))
    for in_tensor in ((row, column), (row,), (column,)):
        asked = [
            dataclasses.replace(r, seed=seeds[i]) if r in in_tensor else r
            for i, r in enumerate((row, column), 1)
        ]
        ours = make_operand_pair_gpu(x.to(device), *asked)
        for operand, r in zip(ours, (row, column), strict=True):
            assert_same_operand("seeds of a pair in a tensor", operand, reference(x, r))


def check_default_dtype(device):
    """Constants worked out and tensors made while PyTorch's default dtype is another one."""
    x = finite((128, 160), "normal", torch.float32)
    requests = [
        request(QuantSpec(fmt, tile), 0, size)
        for fmt, tile, size in ((NVFP4, (1, 16), 2), (MXFP4, (1, 32), 32), (FP8_BLOCK, (1, 128), 0))
    ]
    expected = [(reference(x, r), packed_reference(x, r)) for r in requests]
    worked_out = (binding._PLANS.clear, passes.copy_constants.cache_clear, scale_factors.cache_clear)
    try:
        for forget in worked_out:
            forget()
        torch.set_default_dtype(torch.bfloat16)
        for r, (operand, packed) in zip(requests, expected, strict=True):
            ours = make_operand_gpu(
                placed(x, device), r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs
            )
            assert_same_operand(f"{spec_id(r.spec)} operand", ours, operand)
            (stored,) = pack_gpu(placed(x, device), (r,))
            for part in ("codes", "scales", "amax"):
                assert_same(f"{spec_id(r.spec)} {part}", getattr(stored, part).cpu(), getattr(packed, part))
    finally:
        torch.set_default_dtype(torch.float32)
        for forget in worked_out:
            forget()


def interpreter_checks():
    """(name, call): every branch of the kernels once or twice; the device gets the full product."""
    some = ("bf16", "every_exponent", "ties")
    for i, spec in enumerate(ALL_SPECS):
        along, dtype = i % 2, (torch.float32, torch.bfloat16)[i // 2 % 2]
        yield (
            f"spec {spec_id(spec)}",
            lambda s=spec, a=along, d=dtype: check_spec(s, a, d, "cpu", regimes=some, shape=(32, 144)),
        )
        if i % 3 == 0:
            yield f"zeros {spec_id(spec)}", lambda s=spec: check_zeros(s, "cpu")
    yield "infinities that cancel", lambda: check_infinities_that_cancel("cpu")
    for size in SIZES:
        spec = QuantSpec(NVFP4, (1, 16), rounding="sr" if size % 3 == 1 else "rne")
        for along in (0, 1):
            yield (
                f"transform {size} along {along}",
                lambda s=spec, a=along, n=size: check_transform(s, a, n, "cpu", regimes=("bf16",)),
            )
    for i, shape in enumerate([(3, 100), (5, 48), (1, 1), (1, 300), (130, 1)]):
        spec = ALL_SPECS[(7 * i + 2) % len(ALL_SPECS)]
        yield f"odd {shape} {spec_id(spec)}", lambda s=spec, n=shape, a=i % 2: check_odd_size(s, a, n, "cpu")
    for rounding in ("rne", "sr"):
        spec = QuantSpec(NVFP4, (1, 16), rounding=rounding)
        yield f"strides {rounding}", lambda s=spec: check_strides(s, 0, "cpu")
    yield "trials", lambda: check_trials("cpu")
    for name in GOLDEN_NVFP4 + GOLDEN_MXFP4:
        yield f"golden {name}", lambda n=name: check_golden(n, "cpu")
    for fmt in (NVFP4, MXFP4, MXFP8, FP8_BLOCK):
        for bad in (float("inf"), float("nan")):
            yield (
                f"{bad} in {fmt.name}",
                lambda f=fmt, b=bad: check_non_finite(f, f.tiles_1d, b, "cpu"),
            )
    for i, pair in enumerate(pairs()):
        rows = max(8 if r.along else max(32, r.hadamard) for r in pair)
        # 176: the amax of BF16 numbers is then one of those that the kernel for pairs has its fast way for.
        for columns, dtype in ((176, torch.bfloat16), (32, torch.float32)):
            yield (
                f"pair {i} {dtype}",
                lambda p=pair, s=(rows, columns), d=dtype: check_pair(*p, "cpu", shape=s, dtype=d),
            )
    dtypes = (torch.bfloat16, torch.float32, torch.float32, torch.bfloat16, torch.float32)
    for i, (pair, dtype) in enumerate(zip(pairs(), dtypes, strict=False)):
        yield f"pair {i} strides", lambda p=pair, d=dtype: check_pair_strides(*p, d, "cpu")
    yield "seed in a tensor", lambda: check_seed_tensor("cpu")
    yield "another default dtype", lambda: check_default_dtype("cpu")
    for spec in (QuantSpec(NVFP4, (16, 16)), QuantSpec(FP8_BLOCK, (1, 128))):
        yield (
            f"last rows {spec_id(spec)}",
            lambda s=spec: tall_cases.check_last_rows(s, 0, torch.float32, "cpu", rows=256, columns=144),
        )
    yield from pairs_cases.interpreter_checks()
    yield from source_cases.interpreter_checks()
    yield from tall_cases.interpreter_checks()
    yield "noise by element", lambda: check_noise_by_element("cpu")


if __name__ == "__main__":
    sys.exit(run(interpreter_checks()))
