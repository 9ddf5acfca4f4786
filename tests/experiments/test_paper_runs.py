"""Every run of the paper has exactly the operands that its figure names: the whole table, written by hand.

Order of the columns: fprop x, fprop w, dgrad g, dgrad w, wgrad x, wgrad g; then blocks in BF16 (first, last) of the
paper's model, where the run starts and ends, and whose checkpoint it takes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.experiments.derive import Derived, derive_all
from repro.experiments.describe import rule_in_words
from repro.experiments.errors import read_mapping, validate
from repro.experiments.model import load_model_spec
from repro.experiments.recipe import GEMM_OPERANDS
from repro.experiments.schema import Tier

CONFIGS = Path(__file__).parents[2] / "configs"

BF16 = ("bf16",) * 6
FP8 = tuple(f"fp8_block {b} rne" for b in ("1d", "2d", "1d", "2d", "1d", "1d"))


def nvfp4(
    *,
    w: str = "2d",
    rounding: str = "rne rne sr rne rne sr",
    rht: str = "",
    on: str = "wgrad",
    fmt: str = "nvfp4",
) -> tuple[str, ...]:
    """Six rules: `w` blocks of the weight, rounding in the order of the columns, `rht` on one GEMM."""
    blocks = ("1d", w, "1d", w, "1d", "1d")
    gemms = ("fprop", "fprop", "dgrad", "dgrad", "wgrad", "wgrad")
    return tuple(
        f"{fmt} {b} {r}" + (f" hadamard {rht}" if rht and gemm == on else "")
        for b, r, gemm in zip(blocks, rounding.split(), gemms, strict=True)
    )


RNE = "rne rne rne rne rne rne"
FULL = nvfp4(rht="16 fixed")
BASE = nvfp4(w="1d", rounding=RNE)
MXFP4 = nvfp4(rht="32 fixed", fmt="mxfp4")
FROM_START = (None, 0.0, 1.0)
ABLATED = ("12b_nvfp4", 0.343, 0.394)


def only_weights(blocks: str) -> tuple[str, ...]:
    return ("bf16", f"nvfp4 {blocks} rne", "bf16", f"nvfp4 {blocks} rne", "bf16", "bf16")


def only_activations(blocks: str) -> tuple[str, ...]:
    return (f"nvfp4 {blocks} rne", "bf16", "bf16", "bf16", f"nvfp4 {blocks} rne", "bf16")


def swapped(rules: tuple[str, ...], **by_column: str) -> tuple[str, ...]:
    columns = ("fprop_x", "fprop_w", "dgrad_g", "dgrad_w", "wgrad_x", "wgrad_g")
    return tuple(by_column.get(column, rule) for column, rule in zip(columns, rules, strict=True))


EXPECTED = {
    # Figure 2, Appendix A.1
    "12b_fp8": (FP8, (1, 2), FROM_START),
    "12b_nvfp4": (FULL, (2, 8), FROM_START),
    # Figure 4
    "12b_without_2d": (nvfp4(w="1d", rht="16 fixed"), (2, 8), ABLATED),
    "12b_last4_bf16": (FULL, (0, 4), ABLATED),
    "12b_without_rht": (nvfp4(), (2, 8), ABLATED),
    "12b_without_sr": (nvfp4(rounding=RNE, rht="16 fixed"), (2, 8), ABLATED),
    # Figures 12, 13
    "12b_rht4": (nvfp4(rht="4 fixed"), (2, 8), ABLATED),
    "12b_rht128": (nvfp4(rht="128 fixed"), (2, 8), ABLATED),
    "12b_signs_none": (nvfp4(rht="16 none"), (2, 8), ABLATED),
    "12b_signs_per_transform": (nvfp4(rht="16 per_transform"), (2, 8), ABLATED),
    # C16
    "12b_sr_dgrad_only": (nvfp4(rounding="rne rne sr rne rne rne", rht="16 fixed"), (2, 8), ABLATED),
    "12b_sr_wgrad_only": (nvfp4(rounding="rne rne rne rne rne sr", rht="16 fixed"), (2, 8), ABLATED),
    # Figure 7
    "12b_switch_both_82": (BF16, (2, 8), ("12b_nvfp4", 0.82, 1.0)),
    "12b_switch_forward_82": (
        swapped(FULL, fprop_x="bf16", fprop_w="bf16"), (2, 8), ("12b_nvfp4", 0.82, 1.0),
    ),
    "12b_switch_backward_82": (
        ("nvfp4 1d rne", "nvfp4 1d rne", "bf16", "bf16", "bf16", "bf16"), (2, 8), ("12b_nvfp4", 0.82, 0.884),
    ),
    "12b_switch_both_99": (BF16, (2, 8), ("12b_nvfp4", 0.99, 1.0)),
    # Figure 6
    "8b_bf16": (BF16, (0, 0), FROM_START),
    "8b_nvfp4": (FULL, (0, 8), FROM_START),
    "8b_mxfp4": (MXFP4, (0, 8), FROM_START),
    "8b_mxfp4_1p25x": (MXFP4, (0, 8), FROM_START),
    "8b_mxfp4_1p5x": (MXFP4, (0, 8), FROM_START),
    # Figure 8
    "1p2b_bf16": (BF16, (0, 0), FROM_START),
    "1p2b_last4": (BASE, (0, 4), FROM_START),
    "1p2b_last4_2d": (nvfp4(rounding=RNE), (0, 4), FROM_START),
    "1p2b_last4_2d_rht": (nvfp4(rounding=RNE, rht="16 fixed"), (0, 4), FROM_START),
    "1p2b_last4_2d_rht_sr": (FULL, (0, 4), FROM_START),
    # Figure 9
    "1p2b_first2_last2": (BASE, (2, 2), FROM_START),
    "1p2b_last2": (BASE, (0, 2), FROM_START),
    "1p2b_last1": (BASE, (0, 1), FROM_START),
    "1p2b_first4": (BASE, (4, 0), FROM_START),
    # Figure 10
    "1p2b_sr_gradients": (nvfp4(w="1d", rounding="rne rne sr rne rne sr"), (0, 4), FROM_START),
    "1p2b_sr_backward": (nvfp4(w="1d", rounding="rne rne sr sr sr sr"), (0, 4), FROM_START),
    "1p2b_sr_activations": (nvfp4(w="1d", rounding="sr rne rne rne sr rne"), (0, 4), FROM_START),
    "1p2b_sr_weights": (nvfp4(w="1d", rounding="rne sr rne sr rne rne"), (0, 4), FROM_START),
    # Figure 11
    "1p2b_rht_wgrad": (nvfp4(w="1d", rounding=RNE, rht="16 fixed"), (0, 4), FROM_START),
    "1p2b_rht_dgrad": (nvfp4(w="1d", rounding=RNE, rht="16 fixed", on="dgrad"), (0, 4), FROM_START),
    "1p2b_rht_fprop": (nvfp4(w="1d", rounding=RNE, rht="16 fixed", on="fprop"), (0, 4), FROM_START),
    # Figure 14
    "1p2b_weights_different": (only_weights("1d"), (0, 4), FROM_START),
    "1p2b_weights_same": (only_weights("1d_shared"), (0, 4), FROM_START),
    "1p2b_weights_2d": (only_weights("2d"), (0, 4), FROM_START),
    "1p2b_activations_different": (only_activations("1d"), (0, 4), FROM_START),
    "1p2b_activations_same": (only_activations("1d_shared"), (0, 4), FROM_START),
    # C17, C18, C24, C25
    "1p2b_base_all": (BASE, (0, 0), FROM_START),
    "1p2b_sr_all": (nvfp4(w="1d", rounding="rne rne sr rne rne sr"), (0, 0), FROM_START),
    "1p2b_rht_size2": (nvfp4(rht="2 fixed"), (0, 4), FROM_START),
    "1p2b_rht_size4": (nvfp4(rht="4 fixed"), (0, 4), FROM_START),
    "1p2b_rht_size128": (nvfp4(rht="128 fixed"), (0, 4), FROM_START),
    "1p2b_signs_none": (nvfp4(rht="16 none"), (0, 4), FROM_START),
    "1p2b_signs_per_transform": (nvfp4(rht="16 per_transform"), (0, 4), FROM_START),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs() -> dict[str, Derived]:
    tier_file = CONFIGS / "tiers" / "paper.yaml"
    models = {
        family: load_model_spec(CONFIGS / f"models/paper/{family}.yaml") for family in ("12b", "8b", "1p2b")
    }
    return derive_all(CONFIGS, validate(Tier, read_mapping(tier_file), tier_file), models)


def test_there_is_no_run_more_or_less(runs: dict[str, Derived]) -> None:
    assert set(runs) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_run_has_the_operands_of_its_figure(name: str, runs: dict[str, Derived]) -> None:
    rules, _, _ = EXPECTED[name]
    recipe = runs[name].recipe
    found = tuple(
        rule_in_words(recipe.rule(gemm, operand))
        for gemm, operands in GEMM_OPERANDS.items()
        for operand in operands
    )
    assert found == rules


@pytest.mark.parametrize("name", EXPECTED)
def test_trial_18_run_keeps_the_blocks_in_bf16_that_the_paper_says(
    name: str, runs: dict[str, Derived]
) -> None:
    _, blocks, _ = EXPECTED[name]
    counts = runs[name].recipe.bf16_blocks
    assert (counts.first, counts.last) == blocks


@pytest.mark.parametrize("name", EXPECTED)
def test_run_starts_and_ends_where_the_figure_draws_it(name: str, runs: dict[str, Derived]) -> None:
    _, _, (parent, start, end) = EXPECTED[name]
    run = runs[name]
    assert (run.parent, run.fork_at, run.end_at) == (parent, start, end)


def test_mxfp4_gets_more_tokens(runs: dict[str, Derived]) -> None:
    factors = [runs[name].horizon_factor for name in ("8b_mxfp4", "8b_mxfp4_1p25x", "8b_mxfp4_1p5x")]
    assert factors == [1.0, 1.25, 1.5]


def test_last_step_of_figure_8_is_the_full_method(runs: dict[str, Derived]) -> None:
    """2D, RHT and SR added one by one arrive at the recipe file itself."""
    full = runs["12b_nvfp4"].recipe
    stepwise = runs["1p2b_last4_2d_rht_sr"].recipe
    assert stepwise.model_copy(update={"bf16_blocks": full.bf16_blocks}) == full


def test_every_run_names_its_source_and_what_it_is_for(runs: dict[str, Derived]) -> None:
    for name, run in runs.items():
        entry = run.entry
        missing = [key for key in ("label", "elements", "claims", "source") if not getattr(entry, key)]
        assert not missing, f"{run.where} lacks {missing}"
        assert entry.replica_of is None, name


def test_claims_of_runs_are_claims_of_the_paper(runs: dict[str, Derived]) -> None:
    stated = {claim for section in read_mapping(CONFIGS / "claims.yaml").values() for claim in section}
    for run in runs.values():
        assert set(run.entry.claims) <= stated, f"{run.where}: {set(run.entry.claims) - stated}"


def test_claims_without_a_figure_have_runs(runs: dict[str, Derived]) -> None:
    claimed = {claim for run in runs.values() for claim in run.entry.claims}
    assert {"C16", "C17", "C18", "C24", "C25"} <= claimed
