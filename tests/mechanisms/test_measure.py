"""The quantities of repro.mechanisms on tensors whose answers are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from repro.mechanisms import measure as measures
from repro.mechanisms.capture import LayerTensors
from repro.mechanisms.measure import (
    Measured,
    block_crest,
    gradient_bias,
    mean_crest,
    measure,
    relative,
    share_near_fp8,
    weight_mismatch,
    wgrad_error,
)
from repro.numerics.formats import MXFP4, NVFP4


def bf16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).float()


def layer(seed: int = 0, *, tokens: int = 128, inputs: int = 48, outputs: int = 64) -> LayerTensors:
    generator = torch.Generator().manual_seed(seed)
    x, w, g = (
        bf16(torch.randn(shape, generator=generator))
        for shape in ((tokens, inputs), (outputs, inputs), (tokens, outputs))
    )
    return LayerTensors("layer", 0, x=x, w=w, g=g)


def value(measured: list[Measured], **wanted: str) -> float:
    found = [m.value for m in measured if all(getattr(m, key) == want for key, want in wanted.items())]
    assert len(found) == 1, f"{wanted} is there {len(found)} times"
    return found[0]


def test_rne_bias_of_values_between_two_codes_is_their_distance_to_the_nearer_one() -> None:
    # amax 6 puts the codes at 0, 0.5 ... 6 themselves: 2.25 lies a quarter of the way from 2 to 3.
    g = torch.full((16, 16), 2.25)
    g[:, 0] = 6.0
    tensors = LayerTensors("layer", 0, x=torch.ones(16, 16), w=torch.eye(16), g=g)
    got = list(gradient_bias(tensors, seed=1, num_draws=64))
    expected = 0.25 * math.sqrt(15 * 16) / g.norm().item()
    assert value(got, gemm="dgrad", tensor="g", quantity="gradient_bias", variant="rne") == pytest.approx(
        expected
    )
    assert value(got, gemm="dgrad", tensor="g", quantity="gradient_error", variant="rne") == pytest.approx(
        expected
    )
    # One SR draw errs by 0.75 a quarter of the time and by 0.25 otherwise: sqrt(3)/4 in root mean square.
    spread = math.sqrt(3) / 4 * math.sqrt(15 * 16) / g.norm().item()
    assert value(got, gemm="dgrad", tensor="g", quantity="gradient_error", variant="sr") == pytest.approx(
        spread, rel=0.05
    )


PLACES = [("dgrad", "g"), ("dgrad", "dx"), ("wgrad", "g"), ("wgrad", "dw")]


@pytest.mark.parametrize(("gemm", "tensor"), PLACES)
def test_sr_bias_is_far_below_that_of_rne_and_hardly_above_the_noise_of_its_draws(
    gemm: str, tensor: str
) -> None:
    got = list(gradient_bias(layer(), seed=1, num_draws=64))
    wanted = {"gemm": gemm, "tensor": tensor, "quantity": "gradient_bias"}
    rne, sr, floor = (value(got, **wanted, variant=variant) for variant in ("rne", "sr", "sr_floor"))
    # SR clips where a block scale was rounded down: up to 1/16 of the amax of some blocks, hence not exactly 0.
    bias = math.sqrt(max(0.0, sr**2 - floor**2))
    assert bias < 0.15 * rne, f"{gemm} {tensor}: SR keeps a bias of {bias}, RNE has {rne}"


def on_the_grid_in_the_mean() -> LayerTensors:
    """A gradient with nothing to clip and 8 bits enough: amax 6 in every block, the rest whole 64ths."""
    generator = torch.Generator().manual_seed(7)
    g = torch.randint(0, 128, (64, 64), generator=generator) / 64
    g[:, ::16] = 6.0
    return LayerTensors("layer", 0, x=torch.ones(64, 16), w=torch.eye(64), g=g)


def test_sr_has_exactly_no_bias_where_nothing_clips() -> None:
    got = list(gradient_bias(on_the_grid_in_the_mean(), seed=1, num_draws=256))
    wanted = {"gemm": "dgrad", "tensor": "g", "quantity": "gradient_bias"}
    sr, floor = (value(got, **wanted, variant=variant) for variant in ("sr", "sr_floor"))
    # Mean square of 3840 random values: its own standard error is sqrt(2 / 3840), 2.3 per cent.
    assert sr**2 == pytest.approx(floor**2, rel=0.1), f"bias {sr} against noise {floor}"


def test_sr_bias_falls_as_one_over_the_root_of_the_draws() -> None:
    few, many = (
        value(
            list(gradient_bias(on_the_grid_in_the_mean(), seed=3, num_draws=draws)),
            gemm="dgrad",
            tensor="g",
            quantity="gradient_bias",
            variant="sr",
        )
        for draws in (8, 128)
    )
    assert few / many == pytest.approx(4.0, rel=0.1)


def test_seed_decides_the_draws() -> None:
    first, again, other = (list(gradient_bias(layer(), seed=seed, num_draws=4)) for seed in (1, 1, 2))
    assert first == again, "the same seed measured something else"
    assert first != other, "another seed drew the same bits"


def test_layers_draw_bits_of_their_own() -> None:
    one, other = (
        list(gradient_bias(replace(layer(), layer=name), seed=1, num_draws=4)) for name in ("a", "b")
    )
    assert one != other


def test_bias_of_a_product_is_relative_to_the_product() -> None:
    got = list(gradient_bias(replace(layer(), w=8 * torch.eye(64)), seed=1, num_draws=2))
    g, dx = (
        value(got, gemm="dgrad", tensor=tensor, quantity="gradient_bias", variant="rne")
        for tensor in ("g", "dx")
    )
    assert dx == pytest.approx(g), "dx is 8 g"


def test_wgrad_error_is_the_root_of_the_mean_square_over_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([0.3, 0.5, 0.1, 0.7, 0.2])  # two draws with RHT, two without, the base
    monkeypatch.setattr(measures, "relative", lambda *_: next(errors))
    got = list(wgrad_error(layer(), seed=1, num_draws=2))
    assert [m.value for m in got] == pytest.approx([math.sqrt(0.17), 0.5, 0.2])


def test_rht_reduces_wgrad_error_where_outliers_drown_small_values_that_add_up() -> None:
    generator = torch.Generator().manual_seed(5)
    x = 0.2 + 0.02 * torch.rand(256, 48, generator=generator)
    x[torch.rand(x.shape, generator=generator) < 1 / 16] = 6.0
    g = 1 + 0.3 * torch.randn(256, 64, generator=generator)
    got = list(
        wgrad_error(LayerTensors("layer", 0, x=bf16(x), w=torch.ones(64, 48), g=bf16(g)), seed=1, num_draws=2)
    )
    rht, none = (value(got, quantity="wgrad_error", variant=variant) for variant in ("rht", "none"))
    assert rht < 0.5 * none, f"error with RHT {rht}, without {none}"


def test_wgrad_error_vanishes_where_every_operand_is_on_the_grid() -> None:
    values = torch.tensor([6.0, 3.0, -1.5, 0.5]).repeat(16, 64).t().contiguous()
    tensors = LayerTensors("layer", 0, x=values, w=torch.eye(16), g=values)
    got = list(wgrad_error(tensors, seed=1, num_draws=2))
    # FP32 tensor scales round once each; nothing else does.
    assert value(got, quantity="wgrad_quant_error") < 4e-7
    assert value(got, quantity="wgrad_error", variant="none") < 4e-7


def test_rht_spreads_one_outlier_over_its_block() -> None:
    x = torch.zeros(16, 1)
    x[3] = 8.0
    tensors = LayerTensors("layer", 0, x=x, w=torch.ones(1, 1), g=torch.ones(16, 1))
    got = list(block_crest(tensors))
    assert value(got, tensor="x", variant="none") == 4.0, "one value of 16: its size is a quarter of it"
    assert value(got, tensor="x", variant="rht") == 1.0, "the transform of one value has one magnitude"


def test_blocks_of_zeros_have_no_crest_and_no_amax_to_keep() -> None:
    x = torch.zeros(48, 1)
    x[3] = 8.0
    assert mean_crest(x) == 4.0, "the other two blocks do not count"
    x = torch.zeros(4, 32)
    x[0], x[0, 7] = 0.125, 6.0
    assert share_near_fp8(x, MXFP4) == 1 / 32, "of the one row that is not zero"


def test_normal_values_keep_their_crest_under_rht() -> None:
    got = list(block_crest(layer(tokens=1024)))
    for tensor in ("x", "g"):
        rht, none = (value(got, tensor=tensor, variant=variant) for variant in ("rht", "none"))
        assert rht == pytest.approx(none, rel=0.02)


def test_square_blocks_give_fprop_and_dgrad_the_same_weight_exactly() -> None:
    got = list(weight_mismatch(layer()))
    assert value(got, variant="2d") == 0.0
    assert value(got, variant="1d") > 0.05


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
def test_one_in_sixteen_values_of_nvfp4_is_near_fp8_at_every_magnitude(scale: float) -> None:
    x = torch.randn(64, 80, generator=torch.Generator().manual_seed(2)) * scale
    share = share_near_fp8(bf16(x), NVFP4)
    assert 1 / 16 <= share < 1.2 / 16, f"share {share}"


@pytest.mark.parametrize(
    ("amax", "share"),
    [(7.0, 0.0), (6.0, 1 / 32), (12.0, 1 / 32), (3.0625, 1 / 32), (5.0, 0.0)],
    ids=["rounds to 8", "exact", "exact at scale 2", "near 3", "tie, rounds to 4"],
)
def test_mxfp4_keeps_a_block_amax_only_where_it_falls_near_a_code(amax: float, share: float) -> None:
    x = torch.full((4, 32), 0.125)
    x[:, 7] = amax
    assert share_near_fp8(x, MXFP4) == share


def test_all_zero_tensors_measure_as_zero_and_not_as_nan() -> None:
    zeros = LayerTensors("layer", 0, x=torch.zeros(32, 32), w=torch.zeros(32, 32), g=torch.zeros(32, 32))
    wrong = [m for m in measure(zeros, seed=1, num_draws=2) if m.value != 0.0]
    assert not wrong, f"not zero: {wrong}"


def test_odd_sizes_are_measured_as_if_padded() -> None:
    got = list(measure(layer(tokens=48, inputs=20, outputs=33), seed=1, num_draws=2))
    assert all(math.isfinite(m.value) for m in got)


def test_relative_error_of_nothing_is_zero_and_of_something_against_nothing_infinite() -> None:
    assert relative(torch.zeros(3), torch.zeros(3)) == 0.0
    assert relative(torch.ones(3), torch.zeros(3)) == math.inf
