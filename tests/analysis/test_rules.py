"""Every rule at its edges, and above all: runs that are too small never confirm or refute anything."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.analysis import rules
from repro.analysis.claims_file import Claim
from repro.analysis.noise import PAPER_FLOOR, Noise
from repro.analysis.verdicts import (
    CONTRADICTED,
    NOT_MEASURED,
    REPRODUCED,
    UNRESOLVED,
    Arm,
    Case,
    Reach,
    Scale,
    human,
)

QUIET = Noise(sd=0.01, dof=30, num_runs=40)
LOUD = Noise(sd=5.0, dof=30, num_runs=40)
REACH = Reach("the paper shows it there", parameters=1e9, tokens_per_parameter=100)
LARGE = Scale("paper", 2_000_000_000, 10**12)
SMALL = Scale("tiny", 600_000, 80_000)
EARLY = Scale("proxy", 2_000_000_000, 2_000_000_000)  # the model is large enough, its horizon is not


def case(scale: Scale = LARGE, kind: str = "order") -> Case:
    return Case(Claim("C0", "s", "fig0", kind, "a statement"), "fig0", scale, REACH, "the paper's words")


def arms(**values: float | None) -> dict[str, Arm]:
    return {key: Arm(key, value) for key, value in values.items()}


ORDER = [["a"], ["b"], ["c"]]
IN_ORDER = arms(a=-0.5, b=-1.0, c=-1.5)


def order(
    found: dict[str, Arm], noise: Noise | None = QUIET, scale: Scale = LARGE, groups=ORDER, margin=None
) -> str:
    return rules.order(case(scale), found, groups, equal_within=margin, noise=noise).verdict


# order


def test_an_order_beyond_the_noise_is_reproduced() -> None:
    assert order(IN_ORDER) == REPRODUCED


def test_a_reversed_pair_beyond_the_noise_contradicts() -> None:
    assert order(arms(a=-0.5, b=-1.5, c=-1.0)) == CONTRADICTED


def test_one_pair_inside_the_noise_leaves_it_unresolved() -> None:
    assert order(arms(a=-0.5, b=-1.0, c=-1.005)) == UNRESOLVED


def test_an_order_without_noise_estimate_is_unresolved() -> None:
    verdict = rules.order(case(), IN_ORDER, ORDER, equal_within=None, noise=None)
    assert verdict.verdict == UNRESOLVED
    assert "no seed replicas" in verdict.reason


def test_the_papers_repetition_decides_only_differences_beyond_it() -> None:
    assert order(IN_ORDER, PAPER_FLOOR) == REPRODUCED
    assert order(arms(a=-0.5, b=-0.7, c=-1.5), PAPER_FLOOR) == UNRESOLVED


def test_a_small_tier_inside_the_noise_is_unresolved_and_says_both_reasons() -> None:
    verdict = rules.order(case(SMALL), IN_ORDER, ORDER, equal_within=None, noise=LOUD)
    assert verdict.verdict == UNRESOLVED
    assert "every interval includes zero" in verdict.reason
    assert "not measurable at this size" in verdict.reason


def test_a_small_tier_beyond_the_noise_is_not_measured_and_names_what_it_saw() -> None:
    verdict = rules.order(case(SMALL), IN_ORDER, ORDER, equal_within=None, noise=QUIET)
    assert verdict.verdict == NOT_MEASURED
    assert "a - b +0.50" in verdict.reason


def test_a_short_horizon_leaves_an_order_open_to_one_side() -> None:
    seen = rules.order(case(EARLY), IN_ORDER, ORDER, equal_within=None, noise=QUIET)
    assert seen.verdict == REPRODUCED
    assert "earlier than in the paper (1 of at least 100 tokens a parameter" in seen.reason
    reversed_pair = rules.order(
        case(EARLY), arms(a=-0.5, b=-1.5, c=-1.0), ORDER, equal_within=None, noise=QUIET
    )
    assert reversed_pair.verdict == NOT_MEASURED
    assert "reversed here: b - c -0.50" in reversed_pair.reason
    half = rules.order(case(EARLY), arms(a=-0.5, b=-1.0, c=-1.005), ORDER, equal_within=None, noise=QUIET)
    assert half.verdict == UNRESOLVED
    assert "seen: a - b +0.50" in half.reason


def test_equality_on_a_short_horizon_says_nothing() -> None:
    assert order(arms(a=-0.50, b=-0.52), scale=EARLY, groups=[["a", "b"]], margin=0.1) == NOT_MEASURED


def test_a_diverged_run_ranks_last() -> None:
    found = arms(a=-0.5, b=-1.0) | {"c": Arm("c", None, diverged_fraction=0.3)}
    assert order(found) == REPRODUCED
    found = arms(b=-1.0, c=-1.5) | {"a": Arm("a", None, diverged_fraction=0.3)}
    assert order(found) == CONTRADICTED


def test_two_diverged_runs_have_no_order() -> None:
    found = arms(a=-0.5) | {key: Arm(key, None, diverged_fraction=0.3) for key in "bc"}
    assert order(found) == UNRESOLVED


def test_a_run_without_value_is_not_measured() -> None:
    assert order(arms(a=-0.5, b=None, c=-1.5)) == NOT_MEASURED


def test_members_of_a_group_may_stand_in_any_order() -> None:
    groups = [["a"], ["b", "c"]]
    assert order(arms(a=-0.5, b=-1.5, c=-1.0), groups=groups) == REPRODUCED


def test_equal_runs_must_be_closer_than_the_margin_by_more_than_the_noise() -> None:
    groups = [["a", "b"]]
    assert order(arms(a=-0.50, b=-0.52), groups=groups, margin=0.1) == REPRODUCED
    assert order(arms(a=-0.50, b=-0.80), groups=groups, margin=0.1) == CONTRADICTED
    assert order(arms(a=-0.50, b=-0.59), groups=groups, margin=0.1) == UNRESOLVED
    assert order(arms(a=-0.50, b=-0.52), LOUD, groups=groups, margin=0.1) == UNRESOLVED


def test_more_seeds_resolve_a_smaller_difference() -> None:
    noise = Noise(sd=0.3, dof=30, num_runs=40)
    one = {key: Arm(key, arm.value) for key, arm in IN_ORDER.items()}
    many = {key: Arm(key, arm.value, seeds=9) for key, arm in IN_ORDER.items()}
    assert order(one, noise) == UNRESOLVED
    assert order(many, noise) == REPRODUCED


@pytest.mark.parametrize(
    ("size", "outcome", "verdict"),
    [
        (LARGE, "held", REPRODUCED),
        (LARGE, "failed", CONTRADICTED),
        (LARGE, "inside", UNRESOLVED),
        (EARLY, "held", REPRODUCED),
        (EARLY, "failed", NOT_MEASURED),
        (EARLY, "inside", UNRESOLVED),
        (SMALL, "held", NOT_MEASURED),
        (SMALL, "failed", NOT_MEASURED),
        (SMALL, "inside", UNRESOLVED),
    ],
)
def test_a_direction_is_judged_as_an_order_is(size: Scale, outcome: str, verdict: str) -> None:
    found = rules.direction(case(size), "ours", "seen", outcome)
    assert found.verdict == verdict, found.reason
    assert found.reason.startswith("seen")


# value


def value(ours: float | None, stated: float, noise: Noise | None = QUIET, scale: Scale = LARGE) -> str:
    return rules.value(case(scale, "value"), [Arm("x", ours)], [stated], tolerance=0.3, noise=noise).verdict


def test_a_number_within_the_tolerance_is_reproduced() -> None:
    assert value(-1.4, -1.5) == REPRODUCED


def test_a_number_beyond_tolerance_and_noise_contradicts() -> None:
    assert value(-2.5, -1.5) == CONTRADICTED


def test_a_number_just_beyond_the_tolerance_is_unresolved() -> None:
    assert value(-1.81, -1.5) == UNRESOLVED


def test_a_number_inside_its_own_noise_is_unresolved_although_near_the_papers() -> None:
    assert value(-1.4, -1.5, LOUD) == UNRESOLVED


def test_a_stated_zero_needs_noise_below_the_tolerance() -> None:
    assert value(0.02, 0.0) == REPRODUCED
    assert value(0.02, 0.0, LOUD) == UNRESOLVED


def test_a_number_of_a_small_tier_is_not_measured_even_when_it_is_equal() -> None:
    assert value(-1.5, -1.5, QUIET, SMALL) == NOT_MEASURED


def test_all_numbers_of_a_claim_have_to_agree() -> None:
    both = [Arm("x", -1.5), Arm("y", -4.0)]
    verdict = rules.value(case(), both, [-1.5, -2.5], tolerance=0.3, noise=QUIET)
    assert verdict.verdict == CONTRADICTED
    assert verdict.reason.startswith("y is 1.50 points from")


def test_a_bound_is_decided_outside_the_noise_only() -> None:
    def bound(ours: float, noise: Noise = QUIET) -> str:
        return rules.bound(case(kind="value"), Arm("x", ours), above=-1.0, noise=noise).verdict

    assert bound(-0.9) == REPRODUCED
    assert bound(-1.1) == CONTRADICTED
    assert bound(-0.9, LOUD) == UNRESOLVED


# event


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


def test_events_of_a_small_tier_are_not_measured_but_an_unexpected_divergence_is_not_hidden() -> None:
    assert event(True, None, SMALL) == NOT_MEASURED
    assert event(False, 0.4, SMALL) == NOT_MEASURED
    assert event(True, 0.4, SMALL) == UNRESOLVED


# what holds for all rules


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-10, 10), min_size=3, max_size=3),
    st.floats(0.0, 2.0),
    st.integers(1, 40),
    st.one_of(st.none(), st.floats(0.0, 1.0)),
)
def test_runs_out_of_reach_never_confirm_or_refute(
    values: list[float], sd: float, dof: int, margin: float | None
) -> None:
    noise = Noise(sd, dof, dof + 1)
    found = arms(a=values[0], b=values[1], c=values[2])
    small = case(SMALL)
    said = [
        rules.order(small, found, ORDER, equal_within=margin, noise=noise),
        rules.order(small, found, [["a", "b", "c"]], equal_within=margin, noise=noise),
        rules.value(small, list(found.values()), values, tolerance=0.3, noise=noise),
        rules.bound(small, found["a"], above=-1.0, noise=noise),
        rules.event(small, found, {"a": True, "b": False, "c": True}, paper_parameters=1e9),
    ]
    assert {verdict.verdict for verdict in said} <= {UNRESOLVED, NOT_MEASURED}
    assert all(verdict.reason for verdict in said), "a verdict without a reason"


def test_a_combination_is_as_weak_as_its_weakest_part() -> None:
    parts = [case().verdict(verdict, "ours", f"because {verdict}") for verdict in (REPRODUCED, UNRESOLVED)]
    assert rules.combine(*parts).verdict == UNRESOLVED
    parts.append(case().verdict(CONTRADICTED, "ours", "because not"))
    combined = rules.combine(*parts)
    assert combined.verdict == CONTRADICTED
    assert combined.ours == "ours", "what all parts share is said once"
    assert "because reproduced; because unresolved; because not" in combined.reason


def test_a_combination_says_its_reach_once() -> None:
    parts = [
        case().verdict(NOT_MEASURED, "x", "seen this; not measurable at this size (too small)"),
        case().verdict(NOT_MEASURED, "y", "not measurable at this size (too small)"),
    ]
    assert rules.combine(*parts).reason == "seen this; not measurable at this size (too small)"


def test_of_a_statement_whose_runs_are_partly_recorded_the_known_numbers_are_told() -> None:
    partly = replace(EARLY, unrecorded=("run_of_b",))
    found = arms(a=-0.5, b=None)
    told = [
        rules.value(case(partly), [*found.values()], [-0.5, -1.0], tolerance=0.3, noise=None),
        rules.order(case(partly), found, [["a"], ["b"]], equal_within=None, noise=QUIET),
        rules.event(case(partly), found, {"a": True, "b": False}, paper_parameters=1e9),
    ]
    for verdict in told:
        assert (verdict.verdict, verdict.ours) == (NOT_MEASURED, "a -0.50")
        assert verdict.reason == "not recorded: run_of_b"
    nothing = rules.order(case(partly), arms(a=None, b=None), [["a"], ["b"]], equal_within=None, noise=QUIET)
    assert nothing.ours == "-"
    assert rules.combine(nothing, *told).ours == "a -0.50"


def test_reach_says_what_is_lacking_and_why() -> None:
    missing = REACH.missing(SMALL)
    assert missing.startswith(
        "600k of at least 1B parameters, 0.13 of at least 100 tokens a parameter: the paper shows it there"
    )
    assert REACH.missing(LARGE) == ""


def test_an_exact_claim_holds_or_not() -> None:
    for holds, expected in ((True, REPRODUCED), (False, CONTRADICTED)):
        claim = Claim("C1", "exact", "fig1", "exact", "a statement")
        verdict = rules.exact(
            claim, element="fig1", tier="tiny", paper="p", ours="o", holds=holds, reason="r"
        )
        assert verdict.verdict == expected


@pytest.mark.parametrize(
    ("number", "words"), [(1.3e12, "1.3T"), (8.08e9, "8.08B"), (81920, "81.9k"), (math.pi, "3.14"), (0, "0")]
)
def test_large_numbers_in_words(number: float, words: str) -> None:
    assert human(number) == words
