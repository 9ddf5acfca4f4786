"""Arms: which seeds count, where a run diverged, and the scale of a comparison."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from made_cases import QUIET, case
from synthetic_results import REPO

from repro.analysis import rules
from repro.analysis.arms import arm, arms, fork_end, judge_event, noise_of, scale
from repro.analysis.comparisons import difference
from repro.analysis.noise import PAPER_FLOOR, Noise
from repro.analysis.paper import load_paper


def table(**gaps: list[float | None]) -> pd.DataFrame:
    """run -> one end gap a seed; None: this seed diverged at 60 %."""
    rows = []
    for run, values in gaps.items():
        for number, value in enumerate(values, start=1):
            name = run if number == 1 else f"{run}_seed{number}"
            status = "completed" if value is not None else "diverged"
            for fraction in (0.5, 1.0 if value is not None else 0.6):
                place = {"run": name, "replica_of": run, "replica": number, "fraction": fraction}
                rows.append(place | {"status": status, "value": value if fraction != 0.5 else -0.1})
    labels = {
        "quantity": "gap",
        "text": "validation",
        "tier": "tiny",
        "num_parameters": 100,
        "horizon_tokens": 1000,
    }
    found = pd.DataFrame(rows).assign(**labels)
    found["tokens"] = (1000 * found["fraction"]).astype(int)
    return found.assign(end_tokens=found.groupby("run")["tokens"].transform("max"))


def test_one_run_is_the_mean_over_its_seeds() -> None:
    found = arm(table(a=[-1.0, -2.0, -3.0]), "a", "A")
    assert (found.value, found.seeds) == (-2.0, 3)
    assert found.words() == "A -2.00 (mean of 3 seeds)"


def test_a_comparison_counts_the_seeds_that_all_arms_have() -> None:
    found = arms(table(a=[-1.0, -5.0], b=[-1.1]), {"x": "a", "y": "b"}, {"a": "A", "b": "B"})
    assert (found["x"].value, found["x"].seeds) == (-1.0, 1), "seed 2 of a has no partner"
    both = arms(table(a=[-1.0, -5.0], b=[-1.1, -5.3]), {"x": "a", "y": "b"}, {})
    assert both["y"].value == pytest.approx(-3.2)
    assert both["y"].by_seed == {1: -1.1, 2: -5.3}


def test_a_pair_counts_its_own_seeds_although_a_third_arm_has_one() -> None:
    found = arms(table(a=[-1.0, -5.0], b=[-1.1, -5.3], c=[-2.0]), {"x": "a", "y": "b", "z": "c"}, {})
    assert [found[key].value for key in "xyz"] == [-1.0, -1.1, -2.0], "means stand beside each other"
    pair = difference(found["x"], found["y"], QUIET, comparisons=1)
    assert (pair.value, pair.seeds) == (pytest.approx(0.2), 2)
    assert difference(found["y"], found["z"], QUIET, comparisons=1).value == pytest.approx(0.9), (
        "seed 1 alone"
    )


def test_seeds_that_have_no_value_at_the_point_do_not_pair() -> None:
    rows = table(a=[-1.0, -5.0], b=[-1.1, -5.3])
    rows = rows[(rows["run"] != "b_seed2") | (rows["fraction"] < 1.0)]
    found = arms(rows, {"x": "a", "y": "b"}, {}, at=1.0)
    assert (found["x"].value, found["y"].value) == (-1.0, -1.1)


def test_an_arm_without_a_value_does_not_let_the_others_count_different_seeds() -> None:
    found = arms(table(a=[-1.0, -5.0], b=[-1.1]), {"x": "a", "y": "b", "z": "c"}, {})
    assert [found[key].value for key in "xyz"] == [-1.0, -1.1, None]


def test_a_seed_that_diverged_makes_its_arm_the_worst_of_the_pairs_that_share_it() -> None:
    found = arms(table(a=[-1.0, None], b=[-1.1, -1.2], c=[-2.0]), {"x": "a", "y": "b", "z": "c"}, {})
    assert difference(found["y"], found["x"], QUIET, comparisons=1).words() == "b - a: the second diverged"
    assert difference(found["x"], found["z"], QUIET, comparisons=1).value == pytest.approx(1.0)


def test_the_interval_of_a_mean_is_that_of_its_own_seeds() -> None:
    """Seed 3, which b lacks, diverged: it is in a pair with c, and not in the value."""
    rows = table(a=[-1.0, -1.2, None], b=[-1.1, -1.3], c=[-2.0, -2.2, -2.4])
    found = arms(rows, {"x": "a", "y": "b", "z": "c"}, {"a": "A"})
    verdict = rules.value(case(kind="value"), [found["x"]], [-1.1], tolerance=0.3, noise=QUIET)
    # sd 0.1 sqrt(2) of two seeds, t(1) = 12.706
    assert verdict.ours == "A -1.10 [-2.37, +0.17] (mean of 2 seeds)"
    assert difference(found["x"], found["z"], QUIET, comparisons=1).words() == "A - c: the first diverged"


@pytest.mark.parametrize(("paired", "expected"), [((True, True), True), ((True, False), False)])
def test_an_arm_is_paired_where_each_seed_has_its_own_baseline(
    paired: tuple[bool, bool], expected: bool
) -> None:
    rows = table(a=[-1.0, -2.0])
    rows["paired"] = rows["replica"].map(dict(enumerate(paired, start=1)))
    assert arm(rows, "a", "A").is_paired is expected


def test_an_event_counts_the_divergence_of_a_seed_that_other_arms_lack() -> None:
    folder = REPO / "paper_figures" / "fig9"
    paper = load_paper(folder, REPO / "configs" / "claims.yaml")
    runs = paper.judge["C20"]["arms"]
    seeds = {run: [-1.0] for run in runs.values()} | {runs["last4"]: [-1.0, None]}
    verdict = judge_event(table(**seeds), paper, "C20", "as stated")
    assert "1 of 2 seeds of last 4 diverges at 60 %" in verdict.ours


def test_a_seed_whose_baseline_diverged_has_no_value() -> None:
    """Its own run goes on to the end, where there is no gap: the last one that there was is no end value."""
    rows = table(a=[-1.0, -9.0, -2.0])
    rows.loc[(rows["run"] == "a_seed2") & (rows["fraction"] == 1.0), "value"] = math.nan
    found = arm(rows, "a", "A")
    assert (found.value, found.seeds, found.by_seed) == (-1.5, 2, {1: -1.0, 3: -2.0})
    assert found.diverged_fraction is None, "the run itself did not"
    assert arm(rows[rows["run"] == "a_seed2"], "a", "A").value is None


def test_a_divergence_of_any_seed_counts() -> None:
    found = arm(table(a=[-1.0, None]), "a", "A")
    assert found.value is None
    assert found.diverged_fraction == pytest.approx(0.6)


def test_a_run_diverged_where_the_first_of_its_seeds_did() -> None:
    rows = table(a=[None, None])
    rows.loc[(rows["run"] == "a_seed2") & (rows["fraction"] == 0.6), "fraction"] = 0.55
    assert arm(rows, "a", "A").diverged_fraction == pytest.approx(0.55)


def test_a_divergence_at_the_point_of_reading_counts() -> None:
    found = arm(table(a=[None]), "a", "A", at=0.6)
    assert (found.value, found.diverged_fraction) == (None, 0.6)


def test_a_divergence_after_the_point_of_reading_does_not_matter() -> None:
    found = arm(table(a=[None]), "a", "A", at=0.5)
    assert found.diverged_fraction is None
    assert found.value == -0.1


def test_a_run_that_is_not_there_has_no_value() -> None:
    assert arm(table(a=[-1.0]), "b", "B").value is None


def test_the_scale_is_the_smallest_model_and_the_shortest_run_that_ended_well() -> None:
    found = table(a=[-1.0], b=[None])
    found.loc[found["run"] == "b", "num_parameters"] = 50
    size = scale(found, ["a", "b"])
    assert (size.tier, size.parameters, size.tokens) == ("tiny", 50, 1000)
    assert scale(found, ["b"]).tokens == 1000, (
        "a diverged run's end is no limit of the tier: its horizon counts"
    )


def test_of_runs_of_two_horizons_the_shorter_one_is_the_scale() -> None:
    found = table(a=[-1.0], b=[-1.0])
    found.loc[found["run"] == "b", "end_tokens"] = 1500
    found.loc[found["run"] == "b", "num_parameters"] = 200
    assert (scale(found, ["a", "b"]).parameters, scale(found, ["a", "b"]).tokens) == (100, 1000)


def test_a_scale_names_the_runs_that_are_not_recorded() -> None:
    lost = {"run": "b", "role": "missing", "status": "not recorded", "quantity": "none"}
    found = pd.concat([table(a=[-1.0]).assign(role="run"), pd.DataFrame([lost])])
    size = scale(found, ["a", "b"])
    assert (size.tokens, size.unrecorded) == (1000, ("b",))


def test_of_runs_that_all_diverged_the_shorter_horizon_is_the_scale() -> None:
    found = table(a=[None], b=[None])
    found.loc[found["run"] == "b", "horizon_tokens"] = 1500
    assert scale(found, ["a", "b"]).tokens == 1000


@pytest.mark.parametrize(
    ("parameters", "tokens", "expected"), [(1.0, 1.0, PAPER_FLOOR), (0.1, 1.0, None), (1.0, 0.1, None)]
)
def test_the_papers_repetition_lends_its_noise_to_runs_of_its_size_in_both_respects(
    parameters: float, tokens: float, expected: Noise | None
) -> None:
    paper = load_paper(REPO / "paper_figures" / "fig9", REPO / "configs" / "claims.yaml")
    found = table(a=[-1.0]).assign(
        role="run",
        num_parameters=parameters * paper.stated["parameters"],
        horizon_tokens=tokens * paper.stated["horizon_trillions"] * 1e12,
    )
    assert noise_of(found, paper) == expected


def test_forks_are_read_where_the_first_of_them_ends() -> None:
    found = table(a=[-1.0], b=[-1.0])
    found.loc[(found["run"] == "b") & (found["fraction"] == 1.0), "fraction"] = 0.9
    assert fork_end(found, ["a", "b"]) == 0.9
