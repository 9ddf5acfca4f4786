"""The fused CPU kernel gives the PyTorch reference's bits: every spec, layout, transform, size and magnitude."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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

from repro.numerics import QuantSpec, make_operand_reference, random_bits, sign_vector
from repro.numerics.cpu import binding, fake_quantize_cpu, make_operand_cpu
from repro.numerics.cpu.binding import fake_quantize_reference
from repro.numerics.formats import FP8_BLOCK, MXFP4, MXFP8, NVFP4
from repro.numerics.hadamard import SIZES

pytestmark = pytest.mark.skipif(binding.kernel() is None, reason="no C++ compiler: the reference runs anyway")
all_specs = pytest.mark.parametrize("spec", ALL_SPECS, ids=spec_id)

#: Far above 2^32, so that both words of the Philox key matter.
SEED = 0xDEADBEEF12345678


def kwargs_for(spec, along, hadamard=0, kind="fixed", seed=SEED):
    signs = make_signs(hadamard, kind) if hadamard and kind != "none" else None
    return {
        "along": along,
        "hadamard": hadamard,
        "signs": signs,
        "seed": seed if spec.rounding == "sr" else None,
    }


def assert_same_operand(what, ours, expected) -> None:
    assert_same(f"{what}: values", ours.values, expected.values)
    assert_same(f"{what}: amax", ours.amax, expected.amax)
    assert (ours.scale is None) == (expected.scale is None), f"{what}: scale {ours.scale}, {expected.scale}"
    if ours.scale is not None:
        assert_same(f"{what}: scale", ours.scale, expected.scale)


@pytest.fixture
def fused(monkeypatch) -> Iterator[list[int]]:
    """Statuses that the kernel returned: proves that it ran and that the comparison is not reference to reference."""
    statuses: list[int] = []
    library = binding.kernel()

    class Counting:
        def repro_quantize(self, request: bytes) -> int:
            statuses.append(library.repro_quantize(request))
            return statuses[-1]

    monkeypatch.setattr(binding, "kernel", Counting)
    return statuses


@all_specs
@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_spec_in_every_regime(spec, along, dtype, fused):
    for regime in REGIMES:
        x = make_tensor(1, (96, 160), regime).to(dtype)
        if not x.isfinite().all():  # FP32 above BF16's largest number
            x = make_tensor(1, (96, 160), regime).mul(0.99).to(dtype)
        kwargs = kwargs_for(spec, along)
        assert_same_operand(
            regime, make_operand_cpu(x, spec, **kwargs), make_operand_reference(x, spec, **kwargs)
        )
    assert fused == [0] * len(REGIMES)


@pytest.mark.parametrize("fmt", [MXFP4, MXFP8], ids=lambda f: f.name)
def test_mx_scales_at_the_smallest_power(fmt, fused):
    """2^-127, a subnormal of FP32, what lies just above it, and zeros."""
    x = torch.zeros(3, 32)
    x[:2] = fmt.element.max * torch.tensor([[2.0**-127], [2.0**-127 + 2.0**-149]])
    x[0, 1] = fmt.element.min_subnormal * 2.0**-127  # zero under a larger scale
    ours = make_operand_cpu(x, QuantSpec(fmt, fmt.tiles_1d), along=1)
    assert_same_operand(fmt.name, ours, make_operand_reference(x, QuantSpec(fmt, fmt.tiles_1d), along=1))
    assert torch.equal(ours.values[0], x[0])
    assert fused == [0]


@all_specs
@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("size", SIZES)
def test_every_transform(spec, along, size, fused):
    for regime, kind in (("bf16", "fixed"), ("mixed_blocks", "random"), ("normal", "none")):
        for shape in ((size, 256), (256, size), (128, 128)):
            x = make_tensor(2, shape, regime)
            kwargs = kwargs_for(spec, along, size, kind)
            ours, expected = make_operand_cpu(x, spec, **kwargs), make_operand_reference(x, spec, **kwargs)
            assert_same_operand(f"{regime} {shape} {kind}", ours, expected)
    assert fused == [0] * 9


@settings(max_examples=150, deadline=None)
@given(
    spec=st.sampled_from(ALL_SPECS),
    along=st.sampled_from([0, 1]),
    size=st.sampled_from([0, 0, *SIZES]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    stride=st.sampled_from(["contiguous", "wide rows", "transposed", "every second column"]),
    regime=st.sampled_from(REGIMES),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_shape_stride_and_magnitude(spec, along, size, dtype, rows, columns, stride, regime, seed):
    if size:  # the transformed dimension must be whole groups
        rows, columns = (
            (-(-rows // size) * size, columns) if along == 0 else (rows, -(-columns // size) * size)
        )
    data = (make_tensor(seed % 1000, (rows, 2 * columns), regime) * 0.99).to(dtype)
    x = {
        "contiguous": lambda: data[:, :columns].contiguous(),
        "wide rows": lambda: data[:, 3 : columns + 3] if columns > 3 else data[:, :columns],
        "transposed": lambda: data[:, :columns].t().contiguous().t(),
        "every second column": lambda: data[:, ::2],
    }[stride]()
    kwargs = kwargs_for(spec, along, size, seed=seed)
    ours, expected = make_operand_cpu(x, spec, **kwargs), make_operand_reference(x, spec, **kwargs)
    assert_same_operand(f"{tuple(x.shape)} {stride} {regime}", ours, expected)
    assert ours.values.is_contiguous()


@all_specs
@pytest.mark.parametrize("along", [0, 1])
def test_rows_that_lie_apart_are_read_to_the_last(spec, along, fused):
    """The last row holds the tensor's amax, and what lies between the rows is larger."""
    data = make_tensor(4, (48, 200), "normal").clamp(-8, 8)
    data[-1] *= 16
    data[:, 96:] = 1e6
    x, kwargs = data[:, :96], kwargs_for(spec, along)
    ours, expected = make_operand_cpu(x, spec, **kwargs), make_operand_reference(x, spec, **kwargs)
    assert_same_operand("wide rows", ours, expected)
    assert fused == [0]


@all_specs
@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("shape", [(3, 100), (5, 48), (64, 1000), (512, 60), (1, 1), (1, 4096), (4096, 1)])
def test_trial_11_odd_sizes_are_padded_with_zeros(spec, along, shape):
    x = make_tensor(3, shape, "bf16")
    kwargs = kwargs_for(spec, along)
    assert_same_operand(
        str(shape), make_operand_cpu(x, spec, **kwargs), make_operand_reference(x, spec, **kwargs)
    )


@pytest.mark.parametrize("name", [*GOLDEN_NVFP4, *GOLDEN_MXFP4])
def test_golden_cases_as_transformer_engine_has_them(name, fused):
    """The row copy, and the column copy as blocks down the rows, from Transformer Engine's own arrays."""
    case = load_golden(name)
    if name in GOLDEN_MXFP4:
        values = make_operand_cpu(case.x, QuantSpec(MXFP4, (1, 32)), along=1).values
        assert torch.equal(values, golden_values(case, "row", case.arrays["row_scale_fp32_pow2"], 32))
        return
    spec = QuantSpec(NVFP4, tuple(case.config["tile"]))
    rht = case.config["rht_on_columnwise"]
    signs = sign_vector(16, kind="fixed") if rht and case.config["random_sign"] else None
    row = make_operand_cpu(case.x, spec, along=1)
    column = make_operand_cpu(case.x, spec, along=0, hadamard=16 if rht else 0, signs=signs)
    for side, operand in (("row", row), ("col", column)):
        scales = torch.from_numpy(case.arrays[f"{side}_scale_e4m3"]).view(torch.float8_e4m3fn).float()
        expected = golden_values(case, side, scales.numpy(), 16)
        assert_same(side, operand.values, expected if side == "row" else expected.t())
        assert_same("amax", operand.amax.reshape(1), case.arrays[f"{side}_amax"])
    assert fused == [0, 0]


def golden_values(case, side, scales, block):
    codes = torch.from_numpy(case.arrays[f"{side}_codes"])
    magnitude = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([magnitude, -magnitude])
    per_value = torch.from_numpy(scales)[: codes.shape[0]].repeat_interleave(block, 1)[:, : codes.shape[1]]
    return table[codes.int()] * per_value


@all_specs
@pytest.mark.parametrize("along", [0, 1])
def test_quantised_and_dequantised_in_the_input_dtype(spec, along):
    seed = SEED if spec.rounding == "sr" else None
    for dtype in (torch.float32, torch.bfloat16):
        for regime in ("bf16", "mixed_blocks", "subnormal", "sparse"):
            x = make_tensor(4, (50, 144), regime).to(dtype)
            ours = fake_quantize_cpu(x, spec, along=along, seed=seed)
            expected = fake_quantize_reference(x, spec, along=along, seed=seed)
            assert ours.dtype == dtype
            assert_same(f"{regime} {dtype}", ours.float(), expected.float())


@all_specs
def test_threads_do_not_change_a_bit(spec):
    x = make_tensor(5, (512, 640), "mixed_blocks")  # large enough for two threads
    before = torch.get_num_threads()
    try:
        for along, hadamard in ((0, 0), (1, 16)):
            kwargs = kwargs_for(spec, along, hadamard)
            results = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(make_operand_cpu(x, spec, **kwargs))
            for threads, result in zip((2, 3), results[1:], strict=True):
                assert_same_operand(f"{threads} threads", result, results[0])
    finally:
        torch.set_num_threads(before)


@all_specs
def test_bf16_operands_where_they_are_exact(spec):
    x = make_tensor(6, (64, 128), "every_exponent")
    kwargs = kwargs_for(spec, 1)
    if spec.format in (NVFP4, MXFP4):
        ours = make_operand_cpu(x, spec, **kwargs, dtype=torch.bfloat16)
        assert ours.values.dtype == torch.bfloat16
        assert_same("values", ours.values.float(), make_operand_reference(x, spec, **kwargs).values)
    else:
        with pytest.raises(
            ValueError, match=f"operands of {spec.format.name} are not exact in torch.bfloat16"
        ):
            make_operand_cpu(x, spec, **kwargs, dtype=torch.bfloat16)


def test_noise_is_that_of_random_bits_by_element_of_x():
    """Between 0 and one step up, P = bits / 256: the byte of element (i, j) decides, whatever `along` is."""
    x = torch.full((48, 80), 0.25)  # half of E2M1's first step after scaling
    x[0, 0] = 6.0
    for along in (0, 1):
        spec = QuantSpec(NVFP4, (16, 16), rounding="sr")
        values = make_operand_cpu(x, spec, along=along, seed=SEED).values
        first_tile = values[:16, :16]
        expected = torch.where(random_bits(SEED, x.shape)[:16, :16] >= 128, 0.5, 0.0) * 448
        expected[0, 0] = 6.0 * 448
        assert torch.equal(first_tile, expected)


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("fmt", [NVFP4, MXFP4, MXFP8, FP8_BLOCK], ids=lambda f: f.name)
@pytest.mark.parametrize("hadamard", [0, 16])
@pytest.mark.parametrize("position", [(0, 0), (37, 101)])
def test_non_finite_values_are_found_and_left_to_the_reference(bad, fmt, hadamard, position, fused):
    x = make_tensor(7, (64, 112), "bf16")
    x[position] = bad
    for tile in fmt.tiles:
        kwargs = kwargs_for(QuantSpec(fmt, tile), 0, hadamard)
        ours = make_operand_cpu(x, QuantSpec(fmt, tile), **kwargs)
        assert not ours.amax.isfinite()
        assert_same_operand(f"{tile}", ours, make_operand_reference(x, QuantSpec(fmt, tile), **kwargs))
    assert fused == [1, 1]


def test_transform_beyond_fp32_is_found(fused):
    x = torch.full((16, 16), 3e38).bfloat16().float()  # 16 / sqrt(16) times that is no number
    operand = make_operand_cpu(x, QuantSpec(NVFP4, (1, 16)), along=0, hadamard=16)
    assert not operand.amax.isfinite()
    assert fused == [1]


def test_what_the_kernel_does_not_take_is_the_references(fused):
    spec = QuantSpec(NVFP4, (1, 16))
    half = make_tensor(8, (16, 32), "normal").half()
    assert_same_operand(
        "float16", make_operand_cpu(half, spec, along=1), make_operand_reference(half, spec, along=1)
    )
    with pytest.raises(ValueError, match="Hadamard size 12"):
        make_operand_cpu(half.float(), spec, along=1, hadamard=12)
    with pytest.raises(ValueError, match="no multiple of the Hadamard size 32"):
        make_operand_cpu(half.float(), spec, along=0, hadamard=32)
    with pytest.raises(ValueError, match="16 signs expected"):
        make_operand_cpu(half.float(), spec, along=0, hadamard=16, signs=torch.ones(8))
    with pytest.raises(ValueError, match="at least one row"):
        make_operand_cpu(torch.zeros(0, 16), spec, along=1)
    assert fused == []


def test_the_input_stays_as_it_was():
    x = make_tensor(9, (64, 64), "bf16")
    before = x.clone()
    make_operand_cpu(x, QuantSpec(NVFP4, (1, 16)), along=0, hadamard=16)
    assert torch.equal(x, before)
