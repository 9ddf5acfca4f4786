"""Pairs of arms: the difference of their end gaps, with its confidence interval, against what is claimed of them.

Differences are in %-points; the interval is the noise's 95 %, Bonferroni over the comparisons of one order. Diverged
runs rank below every finite one; two diverged runs have no order. Does not: say what follows (repro.analysis.orders).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from repro.analysis.noise import Noise
from repro.analysis.verdicts import Arm

#: (better, worse, None), or (one, other, margin within which they are claimed equal).
Pair = tuple[str, str, float | None]


def pairs_of(groups: Sequence[Sequence[str]], equal_within: float | None) -> list[Pair]:
    """(better, worse, None) for neighbouring groups, (one, other, margin) inside a group that is claimed equal.

    Neighbours suffice: better than the next one, each by more than the noise, orders the whole list.
    """
    pairs: list[Pair] = []
    for better, worse in pairwise(groups):
        pairs += [(a, b, None) for a in better for b in worse]
    if equal_within is not None:
        for group in groups:
            pairs += [(a, b, equal_within) for i, a in enumerate(group) for b in group[i + 1 :]]
    return pairs


def compare(
    better: Arm, worse: Arm, margin: float | None, noise: Noise, *, comparisons: int
) -> tuple[str, str]:
    """("held", "failed" or "inside" the noise, what was seen in words) of one claimed pair."""
    a, b = _rank(better), _rank(worse)
    if a == b == -math.inf:
        return "inside", f"{better.name} and {worse.name} both diverged"
    difference = a - b
    limit = noise.paired_limit(better.seeds, worse.seeds, comparisons=comparisons)
    words = f"{better.name} - {worse.name} {_interval(difference, limit)}"
    if margin is not None:
        if abs(difference) + limit <= margin:
            return "held", f"{better.name} = {worse.name} within {margin}"
        return ("failed" if abs(difference) - limit > margin else "inside"), words
    if difference > limit:
        return "held", words
    return ("failed" if difference < -limit else "inside"), words


def apart(arms: Mapping[str, Arm], pairs: Sequence[Pair], noise: Noise) -> list[str]:
    """The pairs that lie apart by more than the noise, either way, in words."""
    found = []
    for one, other, _ in pairs:
        a, b = _rank(arms[one]), _rank(arms[other])
        if a == b == -math.inf:
            continue
        limit = noise.paired_limit(arms[one].seeds, arms[other].seeds, comparisons=len(pairs))
        if abs(a - b) > limit:
            found.append(f"{arms[one].name} - {arms[other].name} {_interval(a - b, limit)}")
    return found


def _interval(difference: float, limit: float) -> str:
    """A difference in %-points with its confidence interval."""
    return f"{difference:+.2f} [{difference - limit:+.2f}, {difference + limit:+.2f}]"


def _rank(arm: Arm) -> float:
    assert arm.rank_value is not None, f"{arm.name} has no value"
    return arm.rank_value
