"""Pairs of arms: the difference of their end gaps, with its confidence interval, against what is claimed of them.

Differences are in %-points, over the seeds that both arms of the pair have: from two on the interval is that of the
paired differences, with one the noise of other runs' gaps is borrowed (repro.analysis.noise says why). It is one of
95 %, Bonferroni over the comparisons of one order. Diverged runs rank below every finite one; two diverged runs have
no order. Does not: say what follows (repro.analysis.orders).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from repro.analysis.noise import Noise, own_limit
from repro.analysis.verdicts import Arm, with_interval

#: (better, worse, None), or (one, other, margin within which they are claimed equal).
Pair = tuple[str, str, float | None]


@dataclass(frozen=True)
class Difference:
    """Mean difference of two arms in %-points, the half of its interval, and over how many common seeds.

    Infinite with a limit of 0 where one of them diverged, NaN where both did.
    """

    names: str
    value: float
    limit: float
    seeds: int

    @property
    def is_beyond(self) -> bool:
        """Whether zero lies outside the interval."""
        return abs(self.value) > self.limit

    def words(self) -> str:
        if not math.isfinite(self.value):
            return f"{self.names}: {'the second' if self.value > 0 else 'the first'} diverged"
        return f"{self.names} {with_interval(self.value, self.limit)}" + (
            f" over {self.seeds} seeds" if self.seeds > 1 else ""
        )


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


def difference(one: Arm, other: Arm, noise: Noise, *, comparisons: int) -> Difference:
    """`one` - `other`; over means of different seeds only where they have none in common."""
    names = f"{one.name} - {other.name}"
    a, b = _by_seed(one), _by_seed(other)
    shared = sorted(a.keys() & b.keys())
    ends = [[gaps[seed] for seed in shared or gaps] for gaps in (a, b)]
    value = sum(ends[0]) / len(ends[0]) - sum(ends[1]) / len(ends[1])
    if not math.isfinite(value):
        return Difference(names, value, 0.0, 0)
    if len(shared) < 2:
        return Difference(names, value, noise.limit(*map(len, ends), comparisons=comparisons), len(shared))
    differences = [x - y for x, y in zip(*ends, strict=True)]
    return Difference(names, value, own_limit(differences, comparisons=comparisons), len(shared))


def compare(
    better: Arm, worse: Arm, margin: float | None, noise: Noise, *, comparisons: int
) -> tuple[str, Difference, str]:
    """("held", "failed" or "inside" the noise, the difference, what was seen in words) of one claimed pair."""
    found = difference(better, worse, noise, comparisons=comparisons)
    if math.isnan(found.value):
        return "inside", found, f"{better.name} and {worse.name} both diverged"
    if margin is not None:
        if abs(found.value) + found.limit <= margin:
            return "held", found, f"{better.name} = {worse.name} within {margin}"
        return ("failed" if abs(found.value) - found.limit > margin else "inside"), found, found.words()
    if not found.is_beyond:
        return "inside", found, found.words()
    return ("held" if found.value > 0 else "failed"), found, found.words()


def basis(differences: Sequence[Difference], noise: Noise) -> str:
    """What the intervals rest on, in one clause: the noise where a pair has one seed, else the pairs' own scatter.

    A pair with a diverged run has no interval and does not count.
    """
    own = "intervals of the seeds' paired differences"
    borrowed = [pair.seeds < 2 for pair in differences if math.isfinite(pair.value)]
    if all(borrowed):
        return noise.words()
    return f"{own}; where a pair has one, {noise.words()}" if any(borrowed) else own


def _by_seed(arm: Arm) -> Mapping[int, float]:
    """End gap by seed, minus infinity of a diverged one; an arm that names no seeds is the first."""
    if gaps := arm.every_seed or arm.by_seed:
        return gaps
    assert arm.rank_value is not None, f"{arm.name} has no value"
    return {1: arm.rank_value}
