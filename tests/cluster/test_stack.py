"""Packages and cards: what is accepted, and what is refused with the reason before a step."""

import pytest

from repro.cluster import stack
from repro.cluster.paths import decide

GOOD = {"megatron-core": "0.19.2", "transformer-engine": "2.20.2", "mamba-ssm": "2.3.2.post1"}


def check(model, **versions):
    stack.check_packages(model, version={**GOOD, **versions}.get, python=(3, 12))


def test_the_pinned_stack_is_accepted(segment):
    check(segment("12b_nvfp4").model)
    check(segment("1p2b_last4").model, **{"mamba-ssm": None})


@pytest.mark.parametrize("version", ["0.14.0", "0.16.1", "0.18.0"])
def test_trial_16_a_megatron_that_ignores_fp4_is_refused_with_the_reason(segment, version):
    with pytest.raises(ValueError, match=r"ignore --fp4-format and train BF16 without a message"):
        check(segment("12b_nvfp4").model, **{"megatron-core": version})


def test_everything_that_is_missing_is_told_at_once(segment):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - several words are looked for
        stack.check_packages(segment("12b_nvfp4").model, version=lambda package: None, python=(3, 11))
    for words in (
        "Python 3.11 is too old",
        "megatron-core >= 0.19",
        "transformer-engine >= 2.19",
        "mamba-ssm >= 2.3",
    ):
        assert words in str(caught.value)


def test_an_old_transformer_engine_is_refused(segment):
    with pytest.raises(ValueError, match=r"transformer-engine 2\.9\.0 is older than 2\.19"):
        check(segment("12b_nvfp4").model, **{"transformer-engine": "2.9.0"})


@pytest.mark.parametrize("capability", [(9, 0), (12, 0), (8, 9)])
def test_trial_19_native_nvfp4_on_another_card_is_refused_before_a_step(segment, layouts, capability):
    decision = decide(segment("12b_nvfp4").recipe)
    with pytest.raises(ValueError, match=r"native NVFP4 needs compute capability 10\.0 or 10\.3 .*--emulate"):
        stack.check_card(layouts["gb200"], decision, name="NVIDIA H200", capability=capability)


@pytest.mark.parametrize("capability", [(10, 0), (10, 3)])
def test_blackwell_cards_are_accepted(segment, layouts, capability):
    decision = decide(segment("12b_nvfp4").recipe)
    stack.check_card(layouts["gb200"], decision, name="NVIDIA GB300", capability=capability)


def test_a_layout_of_another_card_is_refused(segment, layouts):
    with pytest.raises(ValueError, match="layout gb200 is for NVIDIA GB200; this is NVIDIA H200"):
        stack.check_card(
            layouts["gb200"], decide(segment("12b_fp8").recipe), name="NVIDIA H200", capability=(9, 0)
        )


def test_fp8_blocks_are_refused_on_a_card_without_them(segment, layouts):
    decision = decide(segment("12b_fp8").recipe)
    with pytest.raises(
        ValueError, match=r"FP8 block scaling needs compute capability 9\.0; this is NVIDIA L40S"
    ):
        stack.check_card(layouts["h200x8"], decision, name="NVIDIA L40S", capability=(8, 9))


def test_emulation_runs_on_hopper(segment, layouts):
    decision = decide(segment("12b_nvfp4").recipe, emulate=True)
    stack.check_card(layouts["h200x8"], decision, name="NVIDIA H200", capability=(9, 0))
    with pytest.raises(ValueError, match=r"8\.9 on"):
        stack.check_card(layouts["h200x8"], decision, name="NVIDIA A100", capability=(8, 0))
