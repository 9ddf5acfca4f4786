"""Intervals cover the truth as often as they say: simulated seeds, with a quiet and with a noisy baseline.

A run's end loss, relative to the truth, is made of what its seed moves in all runs and of what moves it alone; a gap
is the difference of two such losses. Draws are seeded: nothing here is left to chance between two calls.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from made_cases import LOUD, case

from repro.analysis import rules
from repro.analysis.comparisons import difference
from repro.analysis.noise import own_limit, pool
from repro.analysis.tokens_to_match import loss_noise, matching_budget
from repro.analysis.verdicts import Arm

DRAWS = 5000
# Standard deviations of what moves a run alone, the baseline's and the others'.
BASELINES = {"quiet": (0.01, 0.1), "noisy": (0.5, 0.1)}
SHARED = 1.0


def gaps(baseline: str, *, seeds: int, runs: int) -> np.ndarray:
    """[DRAWS, runs, seeds] gaps whose truth is 0."""
    rng = np.random.default_rng(20251130)
    of_baseline, of_run = BASELINES[baseline]
    moved = SHARED * rng.standard_normal((DRAWS, 1, seeds))
    base = moved + of_baseline * rng.standard_normal((DRAWS, 1, seeds))
    return base - (moved + of_run * rng.standard_normal((DRAWS, runs, seeds)))


def arm(values: np.ndarray) -> Arm:
    return Arm("x", float(values.mean()), len(values), by_seed=dict(enumerate(values.tolist(), start=1)))


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_a_pair_of_repeated_runs(baseline: str, seeds: int) -> None:
    found = [difference(arm(a), arm(b), LOUD, comparisons=1) for a, b in gaps(baseline, seeds=seeds, runs=2)]
    assert 0.94 <= np.mean([abs(pair.value) <= pair.limit for pair in found]) <= 0.96


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_gap_of_a_repeated_run(baseline: str) -> None:
    covered = []
    for (values,) in gaps(baseline, seeds=3, runs=1):
        verdict = rules.value(case(kind="value"), [arm(values)], [0.0], tolerance=0.0, noise=LOUD)
        covered.append(abs(values.mean()) <= verdict.numbers["limits"][0])
    assert 0.94 <= np.mean(covered) <= 0.96


@pytest.mark.parametrize("baseline", BASELINES)
def test_all_pairs_of_an_order_at_once(baseline: str) -> None:
    """Bonferroni: neighbours share a run, so that all hold together at least as often."""
    covered = []
    for runs in gaps(baseline, seeds=3, runs=4):
        arms = [arm(values) for values in runs]
        found = [difference(a, b, LOUD, comparisons=3) for a, b in pairwise(arms)]
        covered.append(all(abs(pair.value) <= pair.limit for pair in found))
    assert 0.95 <= np.mean(covered) <= 0.975


def borrowed(baseline: str, *, lenders: int, dof: int | None = None) -> tuple[float, float]:
    """How often a gap and a difference of one seed are covered by the noise of other runs' three seeds."""
    gap, pair = [], []
    for runs in gaps(baseline, seeds=4, runs=lenders + 2):
        noise = pool(runs[:lenders, :3].tolist())
        assert noise is not None
        noise = replace(noise, dof=dof or noise.dof)
        gap.append(abs(runs[-2, 3]) <= noise.limit(1))
        found = difference(Arm("a", runs[-2, 3]), Arm("b", runs[-1, 3]), noise, comparisons=1)
        pair.append(abs(found.value) <= found.limit)
    return float(np.mean(gap)), float(np.mean(pair))


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("lenders", [1, 4])
def test_what_has_one_seed_borrows_enough(baseline: str, lenders: int) -> None:
    gap, pair = borrowed(baseline, lenders=lenders)
    assert gap >= 0.94
    assert pair >= 0.94


def test_what_one_run_lends_is_no_more_than_needed() -> None:
    """A gap, with either baseline; a difference, with a quiet one."""
    (gap, pair), (of_noisy, _) = (borrowed(baseline, lenders=1) for baseline in BASELINES)
    assert all(0.94 <= covered <= 0.96 for covered in (gap, pair, of_noisy))


def test_runs_of_the_same_seeds_are_no_further_observations() -> None:
    """Counted as such, four runs of three seeds would have 8 degrees of freedom: too many with a noisy baseline."""
    gap, _ = borrowed("noisy", lenders=4, dof=8)
    assert gap < 0.92


def test_a_budget_that_matches_a_loss() -> None:
    """Three seeds of two runs 0.05 apart, one of a run with half again the tokens that gains 0.2; noise 0.005."""
    rng = np.random.default_rng(20251130)
    covered = []
    for moved, own in zip(
        rng.standard_normal((DRAWS, 3)), 0.005 * rng.standard_normal((DRAWS, 7)), strict=True
    ):
        target, first = (dict(enumerate(x)) for x in (moved + own[:3], moved + 0.05 + own[3:6]))
        found = matching_budget(target, [(1.0, first), (1.5, {0: moved[0] - 0.15 + own[6]})])
        noise = loss_noise(target, first, [])
        assert found is not None
        assert noise is not None
        limit = found.sensitivity * noise.limit(1)
        covered.append(abs(found.budget - 1.125) <= limit)
    assert 0.94 <= np.mean(covered) <= 0.96


def test_seeds_against_one_run_of_the_baseline() -> None:
    """Three seeds of a run, one of its baseline that scatters as much."""
    rng = np.random.default_rng(20251130)
    values = 0.1 * (rng.standard_normal((DRAWS, 3)) + rng.standard_normal((DRAWS, 1)))
    covered = [abs(own.mean()) <= own_limit(own.tolist(), is_paired=False) for own in values]
    assert 0.94 <= np.mean(covered) <= 0.96
