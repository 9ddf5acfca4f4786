"""Seed noise against hand calculations, and Student's quantiles against the printed table."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from repro.analysis.noise import PAPER_FLOOR, Noise, own_limit, pool, seed_noise, t_quantile


def table(gaps: dict[str, float], *, paired: bool = True) -> pd.DataFrame:
    rows = []
    for run, value in gaps.items():
        original = run.split("_seed")[0]
        role = "run" if run == original else "replica"
        labels = {"run": run, "replica_of": original, "role": role, "paired": paired}
        rows.append(
            labels | {"quantity": "gap", "text": "validation", "tokens": 1, "fraction": 1.0, "value": value}
        )
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("dof", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_quantiles_of_students_t_as_printed(dof: int, expected: float) -> None:
    assert t_quantile(0.975, dof) == pytest.approx(expected, abs=6e-4)


def test_the_median_is_zero() -> None:
    assert t_quantile(0.5, 4) == pytest.approx(0.0, abs=1e-9)


def test_two_groups_are_pooled_by_their_degrees_of_freedom_and_vouch_for_the_seeds_of_one() -> None:
    found = seed_noise(table({"a": -1.0, "a_seed2": -2.0, "b": -5.0, "b_seed2": -5.2, "b_seed3": -5.4}))
    assert found is not None
    # squares: 0.5 of a; 0.08 of b, over 1 + 2
    assert found.sd == pytest.approx(math.sqrt(0.58 / 3))
    assert (found.dof, found.num_runs) == (2, 5), "b has three seeds, and a two of the same"


def test_a_noise_says_whose_it_is() -> None:
    found = seed_noise(table({"a": -1.0, "a_seed2": -2.0, "b": -5.0, "b_seed2": -5.2, "b_seed3": -5.4}))
    assert found is not None
    source = "a (2 seeds) and b (3 seeds)"
    assert found.words() == f"seed noise of {source}: sd 0.44 points, 2 degrees of freedom"


def test_what_survived_is_not_the_noise() -> None:
    """Two seeds of a that end close together, the third without a value at its end; b ends with both."""
    gaps = {"a": -1.0, "a_seed2": -1.02, "a_seed3": math.nan, "b": -5.0, "b_seed2": -5.2}
    found = seed_noise(table(gaps))
    assert found is not None
    assert found.limit(1) == found.limit(3, 3) == math.inf
    words = "1 of 3 seeds of a diverged or lost its baseline"
    assert found.words() == f"seed noise without bound: {words}"


def test_a_seed_that_diverged_later_than_the_point_of_reading_tells_about_the_noise_there() -> None:
    both = table({"a": -1.0, "a_seed2": -2.0})
    end = both.assign(tokens=2, fraction=1.5, value=[-1.0, math.nan])
    found = seed_noise(pd.concat([both, end]), at=1.0)
    assert found is not None
    assert found.sd == pytest.approx(math.sqrt(0.5))
    assert seed_noise(pd.concat([both, end])).limit(1) == math.inf


def test_a_run_that_diverges_with_every_seed_does_not_scatter() -> None:
    lost = {"a": math.nan, "a_seed2": math.nan}
    assert seed_noise(table(lost)) is None
    found = seed_noise(table(lost | {"b": -5.0, "b_seed2": -5.2}))
    assert found is not None
    assert found.sd == pytest.approx(0.1 * math.sqrt(2))


def test_runs_without_replicas_say_nothing_about_noise() -> None:
    assert seed_noise(table({"a": -1.0, "b": -2.0})) is None


def test_a_replica_without_its_own_baseline_counts_the_baselines_noise_too() -> None:
    paired = seed_noise(table({"a": -1.0, "a_seed2": -2.0}))
    unpaired = seed_noise(table({"a": -1.0, "a_seed2": -2.0}, paired=False))
    assert paired is not None
    assert unpaired is not None
    assert unpaired.sd == pytest.approx(math.sqrt(2) * paired.sd)


def test_the_limit_grows_with_comparisons_and_falls_with_seeds() -> None:
    noise = Noise(sd=0.1, dof=4, num_runs=6)
    assert noise.limit(1, 1) == pytest.approx(t_quantile(0.975, 4) * 0.1 * math.sqrt(2))
    assert noise.limit(1, 1, comparisons=4) > noise.limit(1, 1)
    assert noise.limit(3, 3) == pytest.approx(noise.limit(1, 1) / math.sqrt(3))


def test_the_interval_of_a_mean_is_students() -> None:
    # 1, 2, 6: mean 3, squares 4 + 1 + 9, sd sqrt(7)
    assert own_limit([1.0, 2.0, 6.0]) == pytest.approx(4.303 * math.sqrt(7 / 3), rel=2e-4)
    assert own_limit([1.0, 2.0, 6.0], comparisons=5) == pytest.approx(9.925 * math.sqrt(7 / 3), rel=2e-4)
    assert own_limit([1.0, 3.0]) == pytest.approx(12.706, rel=2e-4), "two seeds are taken as they are"


def test_seeds_against_one_run_of_the_baseline_share_its_noise() -> None:
    paired, unpaired = (own_limit([1.0, 2.0, 6.0], is_paired=is_paired) for is_paired in (True, False))
    assert unpaired == pytest.approx(2 * paired), "sqrt(1/3 + 1) for sqrt(1/3)"


def test_a_group_of_one_tells_nothing() -> None:
    assert pool([[1.0], [2.0]]) is None
    assert pool([[1.0], [2.0, 4.0]]) == Noise(sd=math.sqrt(2), dof=1, num_runs=2)


def test_the_papers_own_repetition_is_a_flat_limit() -> None:
    assert PAPER_FLOOR.limit(1, 1, comparisons=5) == 0.3


def test_a_run_with_one_seed_lends_nothing_and_is_not_named() -> None:
    found = seed_noise(table({"a": -1.0, "a_seed2": -2.0, "b_seed2": -5.0}))
    assert found is not None
    assert found.source == "a (2 seeds)"
