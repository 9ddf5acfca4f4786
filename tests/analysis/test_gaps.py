"""The paper's relative difference and the interpolation of Figure 6b."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from repro.analysis.gaps import relative_gap
from repro.analysis.tokens_to_match import tokens_per_loss, tokens_to_match

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


def test_one_budget_is_no_line() -> None:
    with pytest.raises(ValueError, match="at least two budgets"):
        tokens_to_match(1.3, [(1.0, 1.29)])


def test_tokens_per_loss_is_the_slope_of_the_segment() -> None:
    assert tokens_per_loss([(1.0, 1.3), (1.5, 1.2), (2.0, 1.2)], 1.2) == pytest.approx(5.0)
    assert tokens_per_loss([(1.0, 1.3), (1.5, 1.2), (2.0, 1.2)], 1.7) == float("inf")
