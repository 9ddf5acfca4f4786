"""Events at their edges: which runs ended, which diverged, and that all seeds of a run count."""

from __future__ import annotations

import math

import pytest
from made_cases import LARGE, SMALL, case

from repro.analysis import rules
from repro.analysis.verdicts import CONTRADICTED, NOT_MEASURABLE, REPRODUCED, UNRESOLVED, Arm, Scale


def event(finite: bool, diverged_fraction: float | None, scale: Scale = LARGE) -> str:
    found = {"x": Arm("x", -1.0, diverged_fraction=diverged_fraction)}
    return rules.event(case(scale, "event"), found, {"x": finite}, paper_parameters=1.8e9).verdict


def test_events_as_stated_are_reproduced() -> None:
    assert event(True, None) == REPRODUCED
    assert event(False, 0.4) == REPRODUCED


def test_events_otherwise_contradict_at_the_papers_size() -> None:
    assert event(True, 0.4) == CONTRADICTED
    assert event(False, None) == CONTRADICTED


def test_events_otherwise_on_a_smaller_model_are_unresolved() -> None:
    smaller = Scale("proxy", 1_100_000_000, 10**12)
    assert event(False, None, smaller) == UNRESOLVED


def test_a_model_somewhat_smaller_than_the_papers_is_of_its_size() -> None:
    """Four fifths of its parameters are enough: a stand-in never has the same number."""
    assert event(False, None, Scale("proxy", 1_500_000_000, 10**12)) == CONTRADICTED


def test_events_of_a_small_tier_are_not_measurable_but_an_unexpected_divergence_is_not_hidden() -> None:
    assert event(True, None, SMALL) == NOT_MEASURABLE
    assert event(False, 0.4, SMALL) == NOT_MEASURABLE
    assert event(True, 0.4, SMALL) == UNRESOLVED


def of_seeds(*gaps: float) -> Arm:
    """An arm as repro.analysis.arms makes it; a seed that diverged (minus infinity) did so at 40 % or later."""
    if -math.inf not in gaps:
        return Arm("x", sum(gaps) / len(gaps), len(gaps), by_seed=dict(enumerate(gaps, start=1)))
    return Arm("x", None, diverged_fraction=0.4, by_seed=dict(enumerate(gaps, start=1)))


@pytest.mark.parametrize(
    ("finite", "gaps", "expected", "ours", "otherwise"),
    [
        (True, (-1.0, -1.1, -1.2), REPRODUCED, "x ends", ""),
        (
            True,
            (-1.0, -math.inf, -1.2),
            CONTRADICTED,
            "1 of 3 seeds of x diverges at 40 %",
            "x (1 of 3 seeds)",
        ),
        (True, (-math.inf, -math.inf), CONTRADICTED, "2 of 2 seeds of x diverge, the first at 40 %", "x"),
        (False, (-1.0, -1.1), CONTRADICTED, "x ends", "x"),
        (
            False,
            (-math.inf, -1.1, -math.inf),
            CONTRADICTED,
            "2 of 3 seeds of x diverge, the first at 40 %",
            "x (1 of 3 seeds)",
        ),
        (False, (-math.inf, -math.inf), REPRODUCED, "2 of 2 seeds of x diverge, the first at 40 %", ""),
        (False, (-math.inf,), REPRODUCED, "x diverges at 40 %", ""),
    ],
)
def test_an_event_is_that_of_all_seeds(
    finite: bool, gaps: tuple[float, ...], expected: str, ours: str, otherwise: str
) -> None:
    verdict = rules.event(case(kind="event"), {"x": of_seeds(*gaps)}, {"x": finite}, paper_parameters=1.8e9)
    assert (verdict.verdict, verdict.ours) == (expected, ours)
    if otherwise:
        assert verdict.reason == f"{otherwise} ended otherwise"
