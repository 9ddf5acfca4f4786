"""The paper's relative difference and the interpolation of Figure 6b."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from repro.analysis.gaps import relative_gap
from repro.analysis.tokens_to_match import Losses, loss_noise, matching_budget, tokens_to_match

NAMES = ("baseline", "run")


def curve(losses: list[float], *, start: int = 1) -> pd.DataFrame:
    tokens = np.arange(start, start + len(losses)) * 100
    return pd.DataFrame({"tokens": tokens, "fraction": tokens / 1000, "loss": losses})


def test_a_higher_loss_is_a_negative_gap_in_per_cent_of_the_baseline() -> None:
    gap = relative_gap(curve([2.0, 4.0]), curve([2.1, 3.0]), names=NAMES)
    np.testing.assert_allclose(gap["gap"], [-5.0, 25.0])


def test_only_shared_tokens_are_compared() -> None:
    gap = relative_gap(curve([2.0, 2.0, 2.0]), curve([2.2], start=3), names=NAMES)
    assert gap["tokens"].tolist() == [300]


def test_a_loss_that_is_not_finite_has_no_gap() -> None:
    gap = relative_gap(curve([2.0, np.nan, 2.0]), curve([np.inf, 2.0, 2.0]), names=NAMES)
    assert np.isnan(gap["gap"]).tolist() == [True, True, False]
    of_nothing = relative_gap(curve([0.0, 2.0]), curve([2.0, 2.0]), names=NAMES)
    assert np.isnan(of_nothing["gap"]).tolist() == [True, False]


def test_runs_that_share_no_tokens_are_named() -> None:
    with pytest.raises(ValueError, match="run and its baseline baseline share no token count"):
        relative_gap(curve([2.0]), curve([2.0], start=2), names=NAMES)


def test_the_papers_36_per_cent_is_the_line_between_two_of_its_runs() -> None:
    budgets = [(1.0, 1.2766), (1.25, 1.2693), (1.5, 1.2639)]
    assert tokens_to_match(1.2670, budgets) == pytest.approx(1.36, abs=0.005)


def test_a_loss_that_no_run_reaches_is_not_extrapolated() -> None:
    assert tokens_to_match(1.0, [(1.0, 1.3), (1.5, 1.2)]) is None


def test_a_run_that_is_already_as_good_needs_no_more_tokens() -> None:
    assert tokens_to_match(1.3, [(1.0, 1.29), (1.5, 1.2)]) == 1.0
    assert tokens_to_match(1.3, [(1.0, 1.3), (1.5, 1.2)]) == 1.0


def test_a_run_that_ends_at_the_very_loss_is_the_first_to_reach_it() -> None:
    assert tokens_to_match(1.2, [(1.0, 1.3), (1.25, 1.2), (1.5, 1.2)]) == pytest.approx(1.25)


def test_one_budget_is_no_line() -> None:
    with pytest.raises(ValueError, match="at least two budgets"):
        tokens_to_match(1.3, [(1.0, 1.29)])


def test_the_matching_budget_counts_the_seeds_that_runs_share() -> None:
    """MXFP4 lies 0.01 and 0.03 behind NVFP4 over two seeds; half again its tokens gain 0.1 with the first."""
    first = {1: 1.3, 2: 1.5, 3: 9.0}
    found = matching_budget({1: 1.29, 2: 1.47}, [(1.0, first), (1.5, {1: 1.2})])
    assert found is not None
    assert found.budget == pytest.approx(1.1)
    assert matching_budget({4: 1.29}, [(1.0, first), (1.5, {1: 1.2})]) is None
    assert matching_budget({1: 1.29}, [(1.0, first), (1.5, {4: 1.2})]) is None
    assert matching_budget({1: 1.29}, [(1.0, first)]) is None
    assert matching_budget({1: 1.29}, []) is None


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ({1: 1.27}, [(1.0, {1: 1.3}), (1.5, {1: 1.2})]),
        ({1: 1.27, 2: 1.48}, [(1.0, {1: 1.3, 2: 1.5}), (1.5, {1: 1.2})]),
        ({1: 1.27, 2: 1.48}, [(1.0, {1: 1.3, 2: 1.5}), (1.5, {1: 1.2, 2: 1.42})]),
        ({1: 1.18, 2: 1.37}, [(1.0, {1: 1.3, 2: 1.5}), (1.5, {1: 1.2}), (2.0, {1: 1.15})]),
    ],
)
def test_the_sensitivity_is_that_of_the_budget_to_each_loss(
    target: Losses, line: list[tuple[float, Losses]]
) -> None:
    found = matching_budget(target, line)
    assert found is not None
    squares = 0.0
    for losses in (target, *(own for _, own in line)):
        for seed in list(losses):
            before, losses[seed] = losses[seed], losses[seed] + 1e-6
            moved = matching_budget(target, line)
            losses[seed] = before
            assert moved is not None
            squares += ((moved.budget - found.budget) / 1e-6) ** 2
    assert found.sensitivity == pytest.approx(squares**0.5, rel=1e-3)


def test_a_flat_line_tells_no_budget() -> None:
    found = matching_budget({1: 1.3}, [(1.0, {1: 1.2}), (1.5, {1: 1.2})])
    assert found is not None
    assert (found.budget, found.sensitivity) == (1.0, float("inf"))


def test_losses_scatter_as_the_difference_that_is_read_does_else_as_gaps() -> None:
    gaps = [[0.01, 0.03], [0.02, 0.02]]
    own = loss_noise({1: 1.0, 2: 1.5, 3: 1.2}, {1: 1.0, 2: 1.4, 4: 1.0}, gaps)
    assert own is not None
    assert (own.sd, own.dof) == (pytest.approx(0.05), 1), "differences 0 and 0.1: sd 0.0707"
    lent = loss_noise({1: 1.0, 2: 1.5}, {1: 1.0}, gaps)
    assert lent is not None
    assert lent.sd == pytest.approx(0.01), "squares 0.0002 over 1 + 1"
    assert loss_noise({1: 1.0}, {1: 1.0}, [[0.01]]) is None
