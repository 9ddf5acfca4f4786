"""Which path each run of the paper takes, and the reasons."""

import pytest

from repro.cluster.paths import decide, emulated_runs
from repro.experiments import load

# What Transformer Engine 2.20 expresses with NVFP4BlockScaling and its switches; all other 4-bit runs are emulated.
NATIVE = {
    "12b_nvfp4", "12b_without_2d", "12b_last4_bf16", "12b_without_rht", "12b_without_sr", "12b_switch_backward_82",
    "8b_nvfp4",
    "1p2b_last4", "1p2b_last4_2d", "1p2b_last4_2d_rht", "1p2b_last4_2d_rht_sr", "1p2b_first2_last2", "1p2b_last2",
    "1p2b_last1", "1p2b_first4", "1p2b_sr_gradients", "1p2b_rht_wgrad", "1p2b_base_all", "1p2b_sr_all",
}  # fmt: skip
BF16 = {"8b_bf16", "1p2b_bf16", "12b_switch_both_82", "12b_switch_both_99"}


def test_every_run_of_the_paper_takes_the_path_that_its_recipe_needs(paper):
    taken = {name: decide(run.recipe).path for name, run in paper.runs.items()}
    expected = dict.fromkeys(taken, "emulated")
    expected |= dict.fromkeys(NATIVE, "te_nvfp4") | dict.fromkeys(BF16, "bf16") | {"12b_fp8": "te_fp8"}
    different = {name: (taken[name], expected[name]) for name in taken if taken[name] != expected[name]}
    assert not different, f"run: (taken, expected) {different}"


def test_an_emulated_run_says_which_operands_no_native_path_has(paper):
    for name, run in paper.runs.items():
        decision = decide(run.recipe)
        assert decision.reasons, name
        if decision.path == "emulated":
            assert all(" in " in reason or "differ" in reason for reason in decision.reasons), (
                decision.reasons
            )
    assert decide(paper.run("12b_rht4").recipe).reasons == (
        "hadamard is 4 in wgrad.x, wgrad.g: the native transform has size 16 and acts on the operands of Wgrad alone",
    )


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        (
            {"wgrad.*.hadamard": 4, "wgrad.*.signs": "per_transform"},  # the size settles the operand
            (
                "hadamard is 4 in wgrad.x, wgrad.g: the native transform has size 16 and acts on the operands of "
                "Wgrad alone",
            ),
        ),
        (
            {
                "fprop.x.blocks": "2d",
                "fprop.x.rounding": "sr",
                "dgrad.w.blocks": "1d",
            },  # the switch comes second
            (
                "blocks is 2d in fprop.x: native scales run along each GEMM's own dimension, or 16x16 for weights",
                "rounding is sr in fprop.x: natively only gradients round stochastically",
            ),
        ),
        (
            {"wgrad.*.signs": "none", "dgrad.w.blocks": "1d", "wgrad.g.rounding": "rne"},
            (
                "signs is none in wgrad.x, wgrad.g: NVFP4BlockScaling always multiplies by its sign vector",
                "fprop.w.blocks and dgrad.w.blocks differ: one switch sets both",
                "dgrad.g.rounding and wgrad.g.rounding differ: one switch sets both",
            ),
        ),
    ],
)
def test_reasons_are_the_single_values_or_else_what_one_switch_sets_together(paper, changes, reasons):
    assert decide(paper.run("12b_nvfp4").recipe.with_changes(changes)).reasons == reasons


@pytest.mark.parametrize(
    ("run", "disabled"),
    [
        ("12b_nvfp4", "000"),
        ("12b_without_rht", "100"),
        ("12b_without_sr", "010"),
        ("12b_without_2d", "001"),
        ("1p2b_last4", "111"),
        ("1p2b_rht_wgrad", "011"),
    ],
)
def test_switches_say_what_is_off_and_what_is_on(paper, run, disabled):
    environment = decide(paper.run(run).recipe).environment
    names = ("DISABLE_RHT", "DISABLE_STOCHASTIC_ROUNDING", "DISABLE_2D_QUANTIZATION")
    assert "".join(str(environment[f"NVTE_NVFP4_{name}"]) for name in names) == disabled
    assert environment["NVTE_BACKWARD_OVERRIDE"] is None, "an inherited override must be unset"


def test_bf16_in_the_backward_pass_is_a_switch_of_the_native_recipe(paper):
    environment = decide(paper.run("12b_switch_backward_82").recipe).environment
    assert environment["NVTE_BACKWARD_OVERRIDE"] == "high_precision"
    assert environment["NVTE_NVFP4_DISABLE_2D_QUANTIZATION"] == "1"


@pytest.mark.parametrize(
    "changes",
    [
        {"*.g.scale_order": "paper"},
        {"wgrad.x.blocks": "2d"},
        {"fprop.x.format": "fp8_block"},
        {"dgrad.w.blocks": "1d"},
        {"dgrad.g": "bf16"},
        {"wgrad": "bf16"},
    ],
)
def test_a_recipe_outside_the_native_table_is_emulated_never_approximated(paper, changes):
    recipe = paper.run("12b_nvfp4").recipe.with_changes(changes)
    assert decide(recipe).path == "emulated", f"{changes} would have run another recipe natively"


def test_emulation_can_be_asked_for(paper):
    assert decide(paper.run("12b_nvfp4").recipe, emulate=True).path == "emulated"
    assert decide(paper.run("8b_bf16").recipe, emulate=True).path == "bf16"
    assert decide(paper.run("12b_fp8").recipe, emulate=True).path == "te_fp8", "4 bits are emulated, not 8"


def test_what_differs_from_the_paper_on_every_path_is_said_on_every_path(paper):
    """Gradients leave a GEMM in BF16 because fused accumulation is off for all; weights are BF16 copies."""
    for run in paper.runs.values():
        decision = decide(run.recipe)
        said = " ".join(decision.notes)
        assert "gradient of a micro batch is rounded to BF16" in said, run.name
        assert ("quantised from the BF16 copy" in said) == (decision.path != "bf16"), run.name


def test_emulated_runs_are_those_of_a_cluster_tier(paper):
    emulated = emulated_runs(paper)
    assert {"8b_mxfp4", "12b_rht4", "12b_switch_forward_82"} <= emulated
    assert not {"12b_nvfp4", "12b_fp8", "8b_bf16"} & emulated
    everywhere = emulated_runs(paper, emulate=True)
    assert {"12b_nvfp4", "8b_mxfp4"} <= everywhere
    assert not {"12b_fp8", "8b_bf16"} & everywhere
    assert not emulated_runs(load("tiny"), emulate=True)


def test_fresh_signs_on_a_weight_are_refused(paper):
    recipe = paper.run("1p2b_rht_fprop").recipe.with_changes({"fprop.*.signs": "per_transform"})
    with pytest.raises(ValueError, match=r"fprop\.w\.signs is per_transform"):
        decide(recipe)
