"""What really entered each GEMM, for every variant of the paper."""

from __future__ import annotations

import itertools

import pytest
import torch
from recipe_variants import OPERANDS, VARIANTS
from watch import LAYER, Watched, assert_rounds_to, expected_operand, watch

from repro.experiments.operand_rule import HADAMARD_SIZES
from repro.numerics.hadamard import SIZES

FORMATS = {name: variant.base for name, variant in VARIANTS.items()}


@pytest.fixture(scope="module")
def watched() -> dict[str, Watched]:
    return {name: watch(variant.recipe()) for name, variant in VARIANTS.items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_each_operand_is_what_the_paper_says(name: str, watched: dict[str, Watched]) -> None:
    run = watched[name]
    for (gemm, operand), text in zip(OPERANDS, VARIANTS[name].operands, strict=True):
        seen = run.seen[gemm, operand]
        values, scale = expected_operand(seen.original, text, gemm, operand, format_name=FORMATS[name])
        differing = int((seen.values.float() != values).sum())
        assert differing == 0, (
            f"{gemm}.{operand} should be {text}: {differing} of {values.numel()} values differ"
        )
        assert (seen.scale is None) == (scale is None), (
            f"{gemm}.{operand}: tensor scale {seen.scale}, not {scale}"
        )
        if scale is not None:
            torch.testing.assert_close(seen.scale, scale, rtol=2**-23, atol=0)


@pytest.mark.parametrize("name", VARIANTS)
def test_operands_come_from_the_original_tensors(name: str, watched: dict[str, Watched]) -> None:
    run = watched[name]
    originals = {"x": run.x.detach(), "w": run.layer.weight.detach(), "g": run.grad}
    for (gemm, operand), seen in run.seen.items():
        assert seen.layer == LAYER
        assert torch.equal(seen.original.float(), originals[operand]), (
            f"{gemm}.{operand} was made from something else"
        )
        assert seen.values.shape == originals[operand].shape, f"{gemm}.{operand} left its layout"


@pytest.mark.parametrize("name", VARIANTS)
def test_products_are_the_products_of_the_operands_seen(name: str, watched: dict[str, Watched]) -> None:
    run = watched[name]
    operand = {key: seen.dequantized() for key, seen in run.seen.items()}
    assert_rounds_to(run.y, operand["fprop", "x"], operand["fprop", "w"].t(), "y", to_bf16=True)
    assert_rounds_to(run.dx, operand["dgrad", "g"], operand["dgrad", "w"], "dx", to_bf16=True)
    assert_rounds_to(run.dw, operand["wgrad", "g"].t(), operand["wgrad", "x"], "dw", to_bf16=False)
    assert run.dw.dtype == torch.float32
    assert not torch.equal(run.dw, run.dw.bfloat16().float()), "the weight gradient was rounded to BF16"


@pytest.mark.parametrize("name", VARIANTS)
def test_weight_is_the_same_in_both_passes_exactly_where_scales_are_shared(
    name: str, watched: dict[str, Watched]
) -> None:
    forward, backward = (watched[name].seen[gemm, "w"] for gemm in ("fprop", "dgrad"))
    texts = VARIANTS[name].operands[1], VARIANTS[name].operands[3]
    shared = texts in {("2d rne", "2d rne"), ("shared rne", "shared rne"), ("bf16", "bf16")}
    assert torch.equal(forward.dequantized(), backward.dequantized()) == shared, f"w is {texts}"
    assert watched[name].layer.reuses_weight == shared


def test_the_texts_tell_operands_apart() -> None:
    """Power of the test above: no two descriptions of an operand give the same values."""
    run = watch(VARIANTS["12b_nvfp4"].recipe())
    texts = ["bf16", "1d rne", "2d rne", "shared rne", "1d sr", "2d sr", "shared sr"]
    texts += [f"1d rne H{size} fixed" for size in (2, 4, 16, 32, 128)]
    texts += ["1d rne H16 none", "1d rne H16 per_transform", "1d sr H16 fixed", "2d rne H16 fixed"]
    for gemm, operand in (("dgrad", "w"), ("wgrad", "x"), ("wgrad", "g")):
        original = run.seen[gemm, operand].original
        if operand == "w":
            original = original[:, :64]
        made = {}
        for text, form in itertools.product(texts, ("nvfp4", "mxfp4")):
            if not (text.endswith("H128 fixed") and original.shape[0] % 128):
                values, scale = expected_operand(original, text, gemm, operand, format_name=form)
                made[text if text == "bf16" else (text, form)] = values * (1.0 if scale is None else scale)
        for (one, a), (other, b) in itertools.combinations(made.items(), 2):
            assert not torch.equal(a, b), f"{gemm}.{operand}: {one} and {other} cannot be told apart"


def test_the_sizes_that_recipes_accept_are_those_that_run() -> None:
    assert (0, *SIZES) == HADAMARD_SIZES
