"""What the Triton kernels are held to, on a GPU (test_gpu_device) and in the interpreter (test_gpu_interpreter).

Each check raises AssertionError with the first difference. Run as a script under TRITON_INTERPRET=1 it does the
interpreter's share and prints one line per check.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from numerics_helpers import (
    ALL_SPECS,
    GOLDEN_MXFP4,
    GOLDEN_NVFP4,
    REGIMES,
    assert_same,
    load_golden,
    make_signs,
    make_tensor,
    spec_id,
)

from repro.numerics import (
    CopyRequest,
    QuantSpec,
    make_operand_reference,
    random_bits,
    seed_tensor,
    sign_vector,
)
from repro.numerics.formats import FP8_BLOCK, MXFP4, MXFP8, NVFP4
from repro.numerics.gpu import binding, make_operand_gpu, make_operand_pair_gpu
from repro.numerics.hadamard import SIZES

#: Far above 2^32, and both words above 2^31: the whole Philox key matters, and no sign may be lost.
SEED = 0xDEADBEEF92345678


def request(spec, along, hadamard=0, kind="fixed", seed=SEED):
    signs = make_signs(hadamard, kind) if hadamard and kind != "none" else None
    return CopyRequest(spec, along, hadamard, signs, seed if spec.rounding == "sr" else None)


def reference(x, r):
    return make_operand_reference(x, r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=r.seed)


def assert_same_operand(what, ours, expected) -> None:
    assert_same(f"{what}: values", ours.values.float().cpu(), expected.values.cpu())
    assert_same(f"{what}: amax", ours.amax.cpu(), expected.amax.cpu())
    assert (ours.scale is None) == (expected.scale is None), f"{what}: scale {ours.scale}, {expected.scale}"
    if ours.scale is not None:
        assert_same(f"{what}: scale", ours.scale.cpu(), expected.scale.cpu())


def placed(x, device):
    """x on the device with its strides and its place in its storage, and so its alignment; `.to()` keeps neither."""
    whole = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return whole.to(device).as_strided(x.shape, x.stride(), x.storage_offset())


def check(x, r, device, what=""):
    """One operand against the reference on the CPU; the kernel must not have gone to the reference itself."""
    on_device = placed(x, device)
    assert binding._refusal(on_device, r) is None
    ours = make_operand_gpu(on_device, r.spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=r.seed)
    exact = torch.bfloat16 if r.spec.format in (NVFP4, MXFP4) else torch.float32
    assert ours.values.dtype == exact, ours.values.dtype
    assert ours.values.is_contiguous()
    assert_same_operand(f"{spec_id(r.spec)} along {r.along} H{r.hadamard} {what}", ours, reference(x, r))


def finite(shape, regime, dtype, seed=1):
    return (make_tensor(seed, shape, regime) * 0.99).to(dtype)


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


def strided(dtype=torch.float32):
    """(what, [64, 96] of other strides than its shape has)."""
    data = make_tensor(4, (64, 2 * 96), "normal").to(dtype)
    yield "wide rows", data[:, 16:112]
    yield "wide rows that are not aligned", data[:, 3:99]
    yield "transposed", data[:, :96].t().contiguous().t()
    yield "every second column", data[:, ::2]


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


def trials():
    """(what, tensor, specification): what other implementations got wrong, as test_quantize.py has it."""
    nvfp4, mxfp4, fp8 = (QuantSpec(fmt, fmt.tiles_1d) for fmt in (NVFP4, MXFP4, FP8_BLOCK))
    noise = make_tensor(8, (32, 64), "normal")

    def blocks(*rows):
        x = torch.zeros(len(rows), 32)
        for i, row in enumerate(rows):
            x[i, : len(row)] = torch.tensor(row)
        return x

    def with_zeros(x):
        x[3, 16:32], x[9], x[:, 5] = 0.0, 0.0, -0.0
        return x

    step = 2.0**-9
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]
    yield "01 smallest scale", blocks([448.0], [1.49 * step, -1.49 * step, 0.5 * step]), nvfp4
    yield "02 zero block under a small amax", with_zeros(noise / noise.abs().max() * 1e-3), nvfp4
    yield "04 zero block and row in noise", with_zeros(noise.clone()), nvfp4
    tiny = torch.zeros(2, 256)
    tiny[1, 128:] = 1e-10
    yield "05 blocks of zeros and of tiny values", tiny, fp8
    yield "06 ties", blocks([2688.0] + [0.0] * 15 + ties + [-y for y in ties]), nvfp4
    for order in ("te", "paper"):
        on_tie = blocks([4.0625] + [0.0] * 15 + [3.046875] + [0.3] * 15)
        yield f"07 scale on a tie, {order}", on_tie, dataclasses.replace(nvfp4, scale_order=order)
    yield "08 power of two rounded up", blocks([7.0, 1.0], [3.0625, 6.0]), mxfp4
    yield "10 tiny tensor", noise * 1e-30, nvfp4


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


@contextlib.contextmanager
def alone_on_the_gpu() -> Iterator[None]:
    """For tensors of many gigabytes: one test at a time of all pytest processes, and the memory is given back."""
    with open(Path(tempfile.gettempdir()) / "repro-large-tensors.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            torch.cuda.empty_cache()


#: Last rows of a tall tensor that are not zero: whole blocks of every format.
LAST = 128


def tall(rows, columns, dtype, device):
    """Zeros, and numbers in the last rows."""
    x = torch.zeros(rows, columns, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(1)
    x[-LAST:] = torch.randn(LAST, columns, generator=generator, device=device)
    return x


def check_last_rows(spec, along, dtype, device, *, rows, columns):
    """The last rows come out as those of a small tensor do, and all others as zeros: no index has overflowed."""
    x = tall(rows, columns, dtype, device)
    ours = make_operand_gpu(x, spec, along=along)
    expected = make_operand_reference(x[-LAST:].clone(), spec, along=along)
    assert torch.equal(ours.amax, expected.amax)
    assert torch.equal(ours.values[-LAST:].float(), expected.values)
    assert torch.count_nonzero(ours.values[:-LAST]) == 0


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
    for spec in (QuantSpec(NVFP4, (16, 16)), QuantSpec(FP8_BLOCK, (1, 128))):
        yield (
            f"last rows {spec_id(spec)}",
            lambda s=spec: check_last_rows(s, 0, torch.float32, "cpu", rows=256, columns=144),
        )
    import pairs_cases  # they import this module
    import source_cases
    import tall_cases

    yield from pairs_cases.interpreter_checks()
    yield from source_cases.interpreter_checks()
    yield from tall_cases.interpreter_checks()
    yield "noise by element", lambda: check_noise_by_element("cpu")


def run(checks) -> int:
    """Exit status; one line per check."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    failed = 0
    for name, call in checks:
        try:
            call()
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc(limit=-3)}")
        else:
            print(f"passed {name}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(run(interpreter_checks()))
