"""Where on a curve a claim is read, over what its error is, and which runs it needs."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from papers_curves import as_results
from stated import paper_of
from test_judging import judge_main, loss_gaps

from paper_figures.claims_text import figure as claims_text
from paper_figures.fig2 import figure as fig2
from paper_figures.fig6 import figure as fig6
from paper_figures.fig10 import figure as fig10
from repro.analysis.arms import arm, fork_end
from repro.analysis.results import Results
from repro.analysis.verdicts import CONTRADICTED, NOT_MEASURED, REPRODUCED


def test_the_change_of_slope_has_the_error_of_both_lines() -> None:
    scattered = np.array([0.03, -0.05, 0.02, 0.01, 0.02, -0.04, 0.03, 0.0])
    before, after = np.array([0.72, 0.74, 0.77, 0.79]), np.array([0.82, 0.85, 0.87, 0.9])
    places = np.concatenate([before, after])
    losses = dict(zip(places, 2.0 - 0.5 * places + scattered, strict=True))
    squared_errors = 0.0
    for side in (before, after):
        percent, values = 100 * side, np.array([losses[place] for place in side])
        residuals = values - np.polyval(np.polyfit(percent, values, 1), percent)
        squared_errors += (residuals**2).sum() / 2 / ((percent - percent.mean()) ** 2).sum()
    limit = 2.776 * math.sqrt(squared_errors)  # t of two times four points less four coefficients
    assert judge_main("C7a", seeds=1, drawn=losses).reason.split(";")[0].endswith(f"error {limit:.4f}")


def test_the_jump_is_looked_for_at_the_last_change_of_the_blend(results: Results) -> None:
    """The blend of the runs changes at 70 and at 90 %."""
    table = fig2.data(results)
    assert (table["quantity"] == "blend_change").sum() == 2
    [verdict] = [verdict for verdict in fig2.claims(table, paper_of("fig2")) if verdict.claim == "C7b"]
    assert verdict.ours.endswith("before 90 %")


@pytest.mark.parametrize(
    ("element", "panel", "claim"),
    [("fig4", "gap", "C11"), ("fig12", "main", "C14"), ("fig13", "main", "C15")],
)
def test_the_forks_are_compared_where_they_end_and_not_where_their_parent_does(
    element: str, panel: str, claim: str
) -> None:
    paper, figure = paper_of(element), import_module(f"paper_figures.{element}.figure")
    table = as_results(paper, panel=panel, text="train", seeds=3)
    last = table[(table["replica_of"] == "12b_nvfp4") & (table["quantity"] == "gap")]
    last = last.groupby("run").tail(3).assign(fraction=1.0, value=-5.0)
    verdict = figure.claims(pd.concat([table, last], ignore_index=True), paper)[0]
    assert (verdict.claim, verdict.verdict) == (claim, REPRODUCED), verdict.reason


def test_the_forks_with_rounding_in_one_product_are_compared_where_they_end(results: Results) -> None:
    table = claims_text.data(results)
    rows = table[table["panel"] == "sr"]
    end = fork_end(rows, claims_text.FORKS)
    assert end < 0.5
    verdict = claims_text.claims(table, paper_of("claims_text"))[0]
    values = [arm(rows, run, run, at=end, seeds=[1]).value for run in ("12b_nvfp4", *claims_text.FORKS)]
    assert verdict.claim == "C16"
    assert sorted(verdict.numbers["values"].values()) == pytest.approx(sorted(values))


@pytest.mark.parametrize(
    ("with_sr", "expected"), [(0.3, REPRODUCED), (0.2, CONTRADICTED), (0.1, CONTRADICTED)]
)
def test_with_stochastic_rounding_a_run_diverges_later_and_not_at_once(with_sr: float, expected: str) -> None:
    """Without it at a fifth of the horizon."""
    paper = paper_of("claims_text").only("all")
    arms = paper.judge["C18"]["arms"]
    ends = {arms["sr_all"]: with_sr, arms["base_all"]: 0.2}
    table = pd.DataFrame({"run": list(ends), "replica_of": list(ends), "fraction": list(ends.values())})
    table = table.assign(
        role="run", replica=1, quantity="gap", text="validation", value=math.nan, status="diverged", tier="paper",
        panel="all", paired=True, num_parameters=1_290_000_000, horizon_tokens=10**12,
    )  # fmt: skip
    table = table.assign(tokens=10**12 * table["fraction"], end_tokens=10**12 * table["fraction"])
    assert claims_text._later(table, paper).verdict == expected


def test_rounding_all_of_the_backward_pass_must_do_no_more_than_rounding_gradients() -> None:
    paper = paper_of("fig10")
    table = loss_gaps(paper, "1p2b_bf16", diverged=("1p2b_sr_activations", "1p2b_sr_weights"))
    table.loc[table["replica_of"] == "1p2b_sr_backward", "value"] += 1.0
    assert fig10.claims(table, paper)[0].verdict == CONTRADICTED


@pytest.mark.parametrize("lost", ["8b_nvfp4", "8b_mxfp4", "8b_mxfp4_1p25x", "8b_mxfp4_1p5x"])
def test_the_tokens_to_match_need_every_run_of_the_line(lost: str) -> None:
    paper = paper_of("fig6")
    curves = as_results(paper, panel="a", text="train", seeds=1)
    missing = curves.head(1).assign(
        panel="budget", run=lost, replica_of=lost, role="missing", status="not recorded", quantity="none"
    )
    verdict = fig6.claims(pd.concat([curves, missing], ignore_index=True), paper)[1]
    assert (verdict.claim, verdict.verdict) == ("C28", NOT_MEASURED)
    assert verdict.reason == f"not recorded: {lost}"


@pytest.mark.parametrize("number", [2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14])
def test_a_figure_reads_the_losses_that_the_paper_draws(number: int, made: Path) -> None:
    """Of training or of validation text, as the axis of paper.yaml says."""
    axes = paper_of(f"fig{number}").stated["axes"].values()
    table = pd.read_csv(made / "elements" / f"fig{number}" / "data.csv")
    curves = table[table["quantity"].isin(("loss", "gap"))]
    [drawn] = {words.split(" loss")[0] for words in axes}
    assert set(curves["text"]) == {{"training": "train", "validation": "validation"}[drawn]}


def test_the_final_losses_of_figure_6_are_of_validation_text(made: Path) -> None:
    table = pd.read_csv(made / "elements" / "fig6" / "data.csv")
    ends = table[table["quantity"] == "final_loss"]
    assert set(ends["text"]) == {"validation"}
    assert ends["run"].is_unique
    assert ends.set_index("run").loc["8b_mxfp4_1p5x", "fraction"] == pytest.approx(1.5)
