"""Which product an FP8 layer runs, and that the card's layer is the emulated one up to that product."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from interpreter import needs_triton, printed
from recipe_variants import VARIANTS
from torch import nn

import repro.numerics.gpu
from repro.numerics.operand import gpu_kernels
from repro.recipes import QuantizedLinear, RunContext, fp8_linear

FP8 = VARIANTS["12b_fp8"].recipe()
CUDA = torch.device("cuda", 0)


def layer(recipe=FP8, **arguments) -> QuantizedLinear:
    weight = nn.Parameter(torch.ones(32, 64))
    return QuantizedLinear(weight, recipe, name="l", block=0, context=RunContext(1, **arguments))


@pytest.fixture
def card(monkeypatch):
    """A GPU that multiplies FP8 blocks, as far as the choice goes."""
    monkeypatch.setattr(fp8_linear, "_card_obstacle", lambda device: None)
    monkeypatch.setattr(fp8_linear, "gpu_kernels", lambda: repro.numerics.gpu)
    fp8_linear._say.cache_clear()


def test_a_cpu_emulates_and_its_record_says_no_more_than_before(card) -> None:
    assert not fp8_linear.runs(layer(), torch.device("cpu"))
    assert all("product" not in line for line in layer().describe())


@pytest.mark.parametrize("blocks", ["1d", "2d"])
def test_the_card_multiplies_the_baselines_blocks(card, blocks) -> None:
    recipe = FP8.with_changes({"*.w.blocks": blocks})
    assert fp8_linear.choose(layer(recipe), CUDA) == "card"


def test_the_switch_and_an_observer_emulate_in_silence(card, caplog) -> None:
    switched, watched = layer(emulate_fp8=True), layer(observer=print)
    assert fp8_linear.choose(switched, CUDA) == fp8_linear.choose(watched, CUDA) == "emulated"
    assert fp8_linear.runs(switched, CUDA)
    assert not fp8_linear.runs(watched, CUDA)
    assert not caplog.records


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"wgrad.g.rounding": "sr"}, "wgrad.g is transformed or rounded stochastically"),
        (
            {"wgrad.*.hadamard": 16, "wgrad.*.signs": "fixed"},
            "wgrad.x is transformed or rounded stochastically",
        ),
        ({"wgrad": "bf16"}, "wgrad.x is not in FP8 blocks"),
        ({"fprop.x.blocks": "2d"}, "fprop.x has square blocks"),
        (
            {"*.x.blocks": "1d_shared"},
            "wgrad.x has blocks along another dimension than its product contracts",
        ),
        ({"dgrad.w.blocks": "1d"}, "the weight's blocks differ between fprop and dgrad"),
    ],
)
def test_other_rules_are_emulated_with_one_line(card, caplog, changes, reason) -> None:
    other = layer(FP8.with_changes(changes))
    for _ in range(2):
        assert not fp8_linear.runs(other, CUDA)
        assert fp8_linear.choose(other, CUDA) == "emulated"
    assert [record.getMessage() for record in caplog.records] == [
        f"FP8 products are emulated by FP32 ones (exact, over ten times slower than BF16): {reason}"
    ]


def test_a_card_without_the_product_is_named_in_one_line(card, monkeypatch, caplog) -> None:
    monkeypatch.setattr(fp8_linear, "_card_obstacle", lambda device: "this is 8.0")
    for _ in range(2):
        assert fp8_linear.runs(layer(), CUDA)
        assert fp8_linear.choose(layer(), CUDA) == "emulated"
    assert [record.getMessage() for record in caplog.records] == [
        "FP8 products are emulated by BF16 ones (exact, slower than BF16): this is 8.0"
    ]


def test_a_gpu_without_triton_is_told_in_the_one_line_of_its_operands(monkeypatch, caplog) -> None:
    """Whether its rules are those of the card or not: the operands of both ask for the same kernels afterwards."""
    monkeypatch.setitem(sys.modules, "repro.numerics.gpu.binding", None)  # what an import then raises
    monkeypatch.delattr(repro.numerics.gpu, "binding", raising=False)
    gpu_kernels.cache_clear()
    try:
        for one in (layer(), layer(FP8.with_changes({"wgrad.g.rounding": "sr"}))):
            assert not fp8_linear.runs(one, CUDA)
            assert fp8_linear.choose(one, CUDA) == "emulated"
        assert gpu_kernels() is None
    finally:
        gpu_kernels.cache_clear()
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("no Triton kernels: ")
    assert "FP8 products are emulated by FP32 ones" in message


def test_only_fp8_by_fp8_has_a_choice() -> None:
    assert fp8_linear.has_fp8_product(layer().plans)
    assert not fp8_linear.has_fp8_product(layer(VARIANTS["12b_nvfp4"].recipe()).plans)
    changes = {"fprop.x": "bf16", "dgrad.g": "bf16", "wgrad.x": "bf16"}
    assert not fp8_linear.has_fp8_product(layer(FP8.with_changes(changes)).plans)


@needs_triton
def test_the_cards_layer_is_the_emulated_one_up_to_its_product() -> None:
    """By Triton's interpreter."""
    said = printed(Path(__file__).with_name("fp8_cases.py"))
    assert said.count("passed") == 6, said


@needs_triton
def test_plans_of_ever_new_shapes_are_forgotten(monkeypatch) -> None:
    """A mixture's experts get another number of tokens in each step."""
    from repro.numerics.gpu import fp8_operand

    class Plan:
        def __init__(self, x, **_copies) -> None:
            self.amax = x

        def run(self, x):
            return [None], self.amax

    monkeypatch.setattr(fp8_operand, "_Plan", Plan)
    monkeypatch.setattr(fp8_operand, "_PLANS", {})
    for num_tokens in range(10_000):
        x = torch.empty(num_tokens, 1, device="meta")
        assert fp8_operand.fp8_copies(x).amax.shape == x.shape
        assert len(fp8_operand._PLANS) < 5000
