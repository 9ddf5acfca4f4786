"""Numbers at their edges; and of every rule: runs that are too small never confirm or refute anything."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_cases import EARLY, LARGE, LOUD, ORDER, QUIET, SMALL, arms, case

from repro.analysis import orders, rules
from repro.analysis.claims_file import Claim
from repro.analysis.noise import Noise
from repro.analysis.verdicts import (
    CONTRADICTED,
    NOT_MEASURABLE,
    NOT_MEASURED,
    REPRODUCED,
    UNRESOLVED,
    Arm,
    Scale,
)

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


def test_a_number_of_a_small_tier_is_not_measurable_even_when_it_is_equal() -> None:
    assert value(-1.5, -1.5, QUIET, SMALL) == NOT_MEASURABLE


def seeds(*gaps: float) -> Arm:
    """An arm with one end gap a seed."""
    return Arm("x", sum(gaps) / len(gaps), len(gaps), by_seed=dict(enumerate(gaps, start=1)))


def test_a_number_that_is_not_measurable_stands_with_its_interval() -> None:
    def told(found: Arm, noise: Noise | None) -> tuple[str, str]:
        number = rules.value(case(SMALL, "value"), [found], [-1.5], tolerance=0.3, noise=noise)
        bound = rules.bound(case(SMALL, "value"), found, above=-1.0, noise=noise)
        assert number.verdict == bound.verdict == NOT_MEASURABLE
        assert number.ours == bound.ours
        assert number.reason == bound.reason
        return number.ours, number.reason.partition("not measurable")[0]

    # sd 0.1, t(2) 4.303: 0.25 for the mean of three; t(30) 2.042 x 5 for the one seed
    of_three = "x -1.40 [-1.65, -1.15] (mean of 3 seeds)", "interval of its own seeds; "
    assert told(seeds(-1.3, -1.4, -1.5), LOUD) == of_three
    assert told(seeds(-1.4), LOUD) == ("x -1.40 [-11.61, +8.81]", f"{LOUD.words()}; ")
    assert told(seeds(-1.4), None) == ("x -1.40", "")


def test_seeds_against_one_run_of_the_baseline_have_the_wider_interval() -> None:
    unpaired = replace(seeds(-1.3, -1.4, -1.5), is_paired=False)
    verdict = rules.value(case(kind="value"), [unpaired], [-1.5], tolerance=0.3, noise=QUIET)
    # sd 0.1, t(2) 4.303, sqrt(1/3 + 1)
    assert verdict.ours == "x -1.40 [-1.90, -0.90] (mean of 3 seeds)"


def test_several_numbers_of_one_claim_hold_together() -> None:
    both = [seeds(-1.3, -1.4, -1.5), replace(seeds(-2.5), name="y")]
    verdict = rules.value(case(kind="value"), both, [-1.5, -2.5], tolerance=0.3, noise=QUIET)
    # t(2) = 6.205 and t(30) = 2.360 at 97.5 %
    assert verdict.ours == "x -1.40 [-1.76, -1.04] (mean of 3 seeds), y -2.50 [-2.52, -2.48]"
    assert verdict.reason.endswith(f"(intervals of their own seeds; where there is one, {QUIET.words()})")


def test_a_missing_number_of_a_small_tier_is_not_measured_and_says_both_reasons() -> None:
    for lost in (Arm("y", None), Arm("y", -1.0, diverged_fraction=0.3)):
        verdict = rules.value(
            case(SMALL, "value"), [Arm("x", -1.5), lost], [-1.5, -1.0], tolerance=0.3, noise=QUIET
        )
        assert verdict.verdict == NOT_MEASURED
        assert verdict.reason.startswith(f"no value: {lost.words()}; not measurable at this size (600k of")


def test_a_number_with_noise_without_bound_is_unresolved() -> None:
    unbounded = Noise(math.inf, 1, 1, source="1 of 3 seeds of d diverged or lost its baseline")
    for stated in (-1.5, -9.0):
        verdict = rules.value(case(kind="value"), [Arm("x", -1.5)], [stated], tolerance=0.3, noise=unbounded)
        assert verdict.verdict == UNRESOLVED
        assert "1 of 3 seeds of d diverged" in verdict.reason
        assert verdict.numbers["limits"] == [None], "JSON has no infinity"
    assert rules.bound(case(kind="value"), Arm("x", -0.9), above=-1.0, noise=unbounded).verdict == UNRESOLVED


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
        orders.order(small, found, ORDER, equal_within=margin, noise=noise),
        orders.order(small, found, [["a", "b", "c"]], equal_within=margin, noise=noise),
        rules.value(small, list(found.values()), values, tolerance=0.3, noise=noise),
        rules.bound(small, found["a"], above=-1.0, noise=noise),
        rules.event(small, found, {"a": True, "b": False, "c": True}, paper_parameters=1e9),
    ]
    assert {verdict.verdict for verdict in said} <= {UNRESOLVED, NOT_MEASURABLE}
    assert all("not measurable at this size (600k of" in verdict.reason for verdict in said)
    assert all(any(char.isdigit() for char in verdict.ours) for verdict in said[:-1]), "without our numbers"


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
        case().verdict(NOT_MEASURABLE, "x", "seen this; not measurable at this size (too small)"),
        case().verdict(NOT_MEASURABLE, "y", "not measurable at this size (too small)"),
    ]
    assert rules.combine(*parts).reason == "seen this; not measurable at this size (too small)"
    assert rules.combine(*parts).verdict == NOT_MEASURABLE
    early = case().verdict(UNRESOLVED, "z", "seen that; at this size, earlier than in the paper (too small)")
    together = rules.combine(parts[1], early)
    assert together.reason == "seen that; not measurable at this size (too small)", "the stronger words stay"
    other = case().verdict(UNRESOLVED, "z", "at this size, earlier than in the paper (too short)")
    assert rules.combine(parts[1], other).reason.endswith(
        "(too small); at this size, earlier than in the paper (too short)"
    )


@pytest.mark.parametrize(
    ("other", "together"),
    [
        (REPRODUCED, NOT_MEASURABLE),
        (UNRESOLVED, NOT_MEASURABLE),
        (NOT_MEASURED, NOT_MEASURED),
        (CONTRADICTED, CONTRADICTED),
    ],
)
def test_a_part_out_of_reach_weighs_more_than_an_open_one_and_less_than_a_missing_one(
    other: str, together: str
) -> None:
    parts = [
        case().verdict(NOT_MEASURABLE, "x", "not measurable at this size (too small)"),
        case().verdict(other, "y", "the other part"),
    ]
    assert rules.combine(*parts).verdict == together
    assert rules.combine(*reversed(parts)).verdict == together


def test_of_a_statement_whose_runs_are_partly_recorded_the_known_numbers_are_told() -> None:
    partly = replace(EARLY, unrecorded=("run_of_b",))
    found = arms(a=-0.5, b=None)
    told = [
        rules.value(case(partly), [*found.values()], [-0.5, -1.0], tolerance=0.3, noise=None),
        orders.order(case(partly), found, [["a"], ["b"]], equal_within=None, noise=QUIET),
        rules.event(case(partly), found, {"a": True, "b": False}, paper_parameters=1e9),
    ]
    for verdict in told:
        assert (verdict.verdict, verdict.ours) == (NOT_MEASURED, "a -0.50")
        assert verdict.reason == "not recorded: run_of_b"
    nothing = orders.order(case(partly), arms(a=None, b=None), [["a"], ["b"]], equal_within=None, noise=QUIET)
    assert nothing.ours == "-"
    assert rules.combine(nothing, *told).ours == "a -0.50"


def test_an_exact_claim_holds_or_not() -> None:
    for holds, expected in ((True, REPRODUCED), (False, CONTRADICTED)):
        claim = Claim("C1", "exact", "fig1", "exact", "a statement")
        verdict = rules.exact(
            claim, element="fig1", tier="tiny", paper="p", ours="o", holds=holds, reason="r"
        )
        assert verdict.verdict == expected
