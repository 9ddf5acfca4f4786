"""Orders and directions at their edges: pairs beyond the noise, inside it, reversed, equal, or seen too early."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from made_cases import EARLY, IN_ORDER, LARGE, LOUD, ORDER, QUIET, SMALL, arms, case

from repro.analysis import orders
from repro.analysis.noise import PAPER_FLOOR, Noise
from repro.analysis.verdicts import (
    CONTRADICTED,
    NOT_MEASURABLE,
    NOT_MEASURED,
    REPRODUCED,
    UNRESOLVED,
    Arm,
    Scale,
)


def order(
    found: dict[str, Arm], noise: Noise | None = QUIET, scale: Scale = LARGE, groups=ORDER, margin=None
) -> str:
    return orders.order(case(scale), found, groups, equal_within=margin, noise=noise).verdict


def test_an_order_beyond_the_noise_is_reproduced() -> None:
    assert order(IN_ORDER) == REPRODUCED


def test_our_values_are_told_best_first() -> None:
    found = arms(a=-1.5, b=-0.5) | {"c": Arm("c", None, diverged_fraction=0.4)}
    verdict = orders.order(case(), found, [["c"], ["a"], ["b"]], equal_within=None, noise=QUIET)
    assert verdict.ours == "b -0.50, a -1.50, c diverged at 40 %"


def test_a_reversed_pair_beyond_the_noise_contradicts() -> None:
    assert order(arms(a=-0.5, b=-1.5, c=-1.0)) == CONTRADICTED


def test_runs_whose_every_seed_ends_the_same_have_no_order() -> None:
    """Their paired differences do not scatter, and the interval is zero alone."""
    same = {key: Arm(key, -1.5, 2, by_seed={1: -1.0, 2: -2.0}) for key in "ab"}
    assert order(same, groups=[["a"], ["b"]]) == UNRESOLVED


def test_one_pair_inside_the_noise_leaves_it_unresolved() -> None:
    assert order(arms(a=-0.5, b=-1.0, c=-1.005)) == UNRESOLVED


def test_an_order_without_noise_estimate_is_unresolved() -> None:
    verdict = orders.order(case(), IN_ORDER, ORDER, equal_within=None, noise=None)
    assert verdict.verdict == UNRESOLVED
    assert "no seed replicas" in verdict.reason
    assert order(IN_ORDER, None, SMALL) == NOT_MEASURABLE


def test_the_papers_repetition_decides_only_differences_beyond_it() -> None:
    assert order(IN_ORDER, PAPER_FLOOR) == REPRODUCED
    assert order(arms(a=-0.5, b=-0.7, c=-1.5), PAPER_FLOOR) == UNRESOLVED


def test_a_small_tier_inside_the_noise_is_unresolved_and_says_both_reasons() -> None:
    verdict = orders.order(case(SMALL), IN_ORDER, ORDER, equal_within=None, noise=LOUD)
    assert verdict.verdict == UNRESOLVED
    assert "every interval includes zero" in verdict.reason
    assert "not measurable at this size" in verdict.reason


def test_a_small_tier_beyond_the_noise_is_not_measurable_and_names_what_it_saw() -> None:
    verdict = orders.order(case(SMALL), IN_ORDER, ORDER, equal_within=None, noise=QUIET)
    assert verdict.verdict == NOT_MEASURABLE
    assert "a - b +0.50" in verdict.reason


def test_a_short_horizon_leaves_an_order_open_to_one_side() -> None:
    seen = orders.order(case(EARLY), IN_ORDER, ORDER, equal_within=None, noise=QUIET)
    assert seen.verdict == REPRODUCED
    assert "earlier than in the paper (1 of at least 100 tokens a parameter" in seen.reason
    reversed_pair = orders.order(
        case(EARLY), arms(a=-0.5, b=-1.5, c=-1.0), ORDER, equal_within=None, noise=QUIET
    )
    assert reversed_pair.verdict == NOT_MEASURABLE
    assert "reversed here: b - c -0.50" in reversed_pair.reason
    half = orders.order(case(EARLY), arms(a=-0.5, b=-1.0, c=-1.005), ORDER, equal_within=None, noise=QUIET)
    assert half.verdict == UNRESOLVED
    assert "seen: a - b +0.50" in half.reason


def test_equality_on_a_short_horizon_says_nothing() -> None:
    assert order(arms(a=-0.50, b=-0.52), scale=EARLY, groups=[["a", "b"]], margin=0.1) == NOT_MEASURABLE


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
    assert order(arms(a=-0.5, b=None, c=-1.5), scale=SMALL) == NOT_MEASURED


def test_members_of_a_group_may_stand_in_any_order() -> None:
    groups = [["a"], ["b", "c"]]
    assert order(arms(a=-0.5, b=-1.5, c=-1.0), groups=groups) == REPRODUCED


def test_equal_runs_must_be_closer_than_the_margin_by_more_than_the_noise() -> None:
    groups = [["a", "b"]]
    assert order(arms(a=-0.50, b=-0.52), groups=groups, margin=0.1) == REPRODUCED
    assert order(arms(a=-0.50, b=-0.80), groups=groups, margin=0.1) == CONTRADICTED
    assert order(arms(a=-0.50, b=-0.59), groups=groups, margin=0.1) == UNRESOLVED
    assert order(arms(a=-0.50, b=-0.52), LOUD, groups=groups, margin=0.1) == UNRESOLVED


def test_equal_runs_just_beyond_the_margin_are_unresolved() -> None:
    # 0.11 apart, its interval reaches 0.029 to both sides
    assert order(arms(a=-0.50, b=-0.61), groups=[["a", "b"]], margin=0.1) == UNRESOLVED


def test_of_equal_runs_each_is_compared_with_every_other() -> None:
    """The first and the last of three may be further apart than neighbours are."""
    groups = [["a", "b", "c"]]
    assert order(arms(a=-0.50, b=-0.52, c=-0.54), groups=groups, margin=0.1) == REPRODUCED
    assert order(arms(a=-0.50, b=-0.55, c=-0.60), groups=groups, margin=0.1) == UNRESOLVED


def test_equal_runs_are_not_said_to_be_reversed_or_near_zero() -> None:
    def reason(scale: Scale, **gaps: float) -> str:
        groups = [["a"], ["b", "c"]]
        return orders.order(case(scale), arms(**gaps), groups, equal_within=0.1, noise=QUIET).reason

    # sd 0.01, sqrt(2), t(30) 2.54 for three comparisons: 0.036
    undecided = "neither within 0.1 nor beyond it: b - c +0.09 [+0.05, +0.13] ("
    assert reason(LARGE, a=0.0, b=-1.0, c=-1.09).startswith(undecided)
    assert f"; {undecided}" in reason(EARLY, a=0.0, b=-1.0, c=-1.09)
    assert reason(EARLY, a=0.0, b=-1.0, c=-1.4).startswith("further apart than 0.1 here: b - c +0.40 [")
    assert reason(EARLY, a=-2.0, b=-1.0, c=-1.0).startswith("reversed here: a - b -1.00 [")


def test_more_seeds_resolve_a_smaller_difference() -> None:
    scatter = {"a": (-0.2, 0.1, 0.1), "b": (0.1, 0.1, -0.2), "c": (0.0, 0.2, -0.2)}
    few, many = (
        {
            key: Arm(key, one.value, by_seed=dict(enumerate([one.value + x for x in scatter[key]] * times)))
            for key, one in IN_ORDER.items()
        }
        for times in (1, 3)
    )
    assert order(few) == UNRESOLVED
    assert order(many) == REPRODUCED


def test_several_orders_of_one_claim_share_its_comparisons() -> None:
    found = arms(a=-0.5, b=-0.54)

    def judged(comparisons: int | None) -> str:
        return orders.order(
            case(), found, [["a"], ["b"]], equal_within=None, noise=QUIET, comparisons=comparisons
        ).verdict

    # sd 0.01, sqrt(2), t(30) 2.042 at 97.5 %, 3.03 at 99.75 %: limits 0.029 and 0.043
    assert judged(None) == REPRODUCED
    assert judged(10) == UNRESOLVED


def test_an_order_says_what_its_intervals_rest_on() -> None:
    repeated = {
        key: replace(one, by_seed={1: one.value - 0.01 * place, 2: one.value, 3: one.value + 0.01 * place})
        for place, (key, one) in enumerate(IN_ORDER.items())
    }

    def reason(found: dict[str, Arm]) -> str:
        return orders.order(case(), found, ORDER, equal_within=None, noise=QUIET).reason

    own = "intervals of the seeds' paired differences"
    # sd 0.01 of both pairs' differences, t(2) = 6.205 for two comparisons: 0.036
    assert (
        reason(repeated)
        == f"a - b +0.50 [+0.46, +0.54] over 3 seeds; b - c +0.50 [+0.46, +0.54] over 3 seeds ({own})"
    )
    assert reason(IN_ORDER).endswith(f"; b - c +0.50 [+0.47, +0.53] ({QUIET.words()})")
    one_of_c = repeated | {"c": IN_ORDER["c"]}
    assert reason(one_of_c).endswith(f"({own}; where a pair has one, {QUIET.words()})")


def test_the_ends_of_an_order_are_told_where_only_they_share_seeds() -> None:
    """b has one seed: its neighbours' differences are of one, that of a and c of two, 0.9 and 1.1."""
    found = IN_ORDER | {
        "a": replace(IN_ORDER["a"], every_seed={1: -0.5, 2: -0.5}),
        "c": replace(IN_ORDER["c"], every_seed={1: -1.4, 2: -1.6}),
    }
    told = "by itself, not judged: a - c +1.00 [-0.27, +2.27] over 2 seeds"  # t(1) = 12.706, sd 0.1 sqrt(2)

    def reason(found: dict[str, Arm], groups: list[list[str]] = ORDER) -> str:
        return orders.order(case(EARLY), found, groups, equal_within=None, noise=QUIET).reason

    assert f"({QUIET.words()}); {told}; at this size" in reason(found)
    three = found | {"b": replace(IN_ORDER["b"], every_seed={1: -1.0, 2: -1.0})}
    assert "by itself" not in reason(three), "neighbours share as many"
    assert "by itself" not in reason(found, [["a"], ["c"]]), "the ends are neighbours"
    assert "by itself" not in reason(IN_ORDER), "one seed each"


def test_noise_without_bound_decides_nothing_that_has_one_seed() -> None:
    unbounded = Noise(math.inf, 1, 1, source="1 of 3 seeds of d diverged or lost its baseline")
    assert order(IN_ORDER, unbounded) == UNRESOLVED
    verdict = orders.order(case(), IN_ORDER, ORDER, equal_within=None, noise=unbounded)
    assert "a - b +0.50 [-inf, +inf]" in verdict.reason
    assert "1 of 3 seeds of d diverged" in verdict.reason
    assert verdict.numbers["noise_sd"] is None, "JSON has no infinity"
    repeated = {key: replace(one, by_seed={1: one.value, 2: one.value}) for key, one in IN_ORDER.items()}
    assert order(repeated, unbounded) == REPRODUCED, "seeds of one's own borrow nothing"


def test_a_pair_with_a_diverged_run_has_no_interval() -> None:
    """Beside it the pairs of one seed borrow theirs, and no pair has its own; with none left nothing is borrowed."""
    diverged = {"c": Arm("c", None, diverged_fraction=0.3)}
    verdict = orders.order(case(), IN_ORDER | diverged, ORDER, equal_within=None, noise=QUIET)
    assert verdict.reason == f"a - b +0.50 [+0.47, +0.53]; b - c: the second diverged ({QUIET.words()})"
    alone = orders.order(case(), IN_ORDER | diverged, [["b"], ["c"]], equal_within=None, noise=QUIET)
    assert alone.reason == f"b - c: the second diverged ({QUIET.words()})"
    repeated = {
        key: replace(IN_ORDER[key], by_seed={1: IN_ORDER[key].value, 2: IN_ORDER[key].value}) for key in "ab"
    }
    own = orders.order(case(), repeated | diverged, ORDER, equal_within=None, noise=QUIET)
    assert own.reason.endswith("(intervals of the seeds' paired differences)")


@pytest.mark.parametrize(
    ("size", "outcome", "verdict"),
    [
        (LARGE, "held", REPRODUCED),
        (LARGE, "failed", CONTRADICTED),
        (LARGE, "inside", UNRESOLVED),
        (EARLY, "held", REPRODUCED),
        (EARLY, "failed", NOT_MEASURABLE),
        (EARLY, "inside", UNRESOLVED),
        (SMALL, "held", NOT_MEASURABLE),
        (SMALL, "failed", NOT_MEASURABLE),
        (SMALL, "inside", UNRESOLVED),
    ],
)
def test_a_direction_is_judged_as_an_order_is(size: Scale, outcome: str, verdict: str) -> None:
    found = orders.direction(case(size), "ours", "seen", outcome)
    assert found.verdict == verdict, found.reason
    assert found.reason.startswith("seen")
