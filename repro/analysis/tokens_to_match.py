"""How many more tokens a format needs to reach another one's final loss (Figure 6b, "36 % more tokens").

The paper's 1.36T point lies on the straight line between its runs of 1.25T and 1.5T tokens and is no run of its own,
so the statement is a linear interpolation between final losses of runs with different budgets. That is done here and
nothing more: outside the span of the runs there is no answer.

Its interval: every loss scatters alike and for itself (`loss_noise`) beside what its seed moves in all runs, which
drops out; the budget moves with each by its derivative, so it scatters by the root of the sum of their squares times
as much (`Match.sensitivity`). That is right while the line's fall is large against the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from repro.analysis.noise import Noise, pool

#: Final loss in nats a token, by the number of the replica.
Losses = Mapping[int, float]


@dataclass(frozen=True)
class Match:
    """A budget in units of the target run's tokens, and how far it scatters for each nat that a loss does."""

    budget: float
    sensitivity: float


def tokens_to_match(target_loss: float, budgets: Sequence[tuple[float, float]]) -> float | None:
    """Budget at which the line through (budget, final loss) points first reaches `target_loss`.

    Args:
        target_loss: final loss of the run to match, in nats a token.
        budgets: (tokens in units of the target run's tokens, final loss), at least two with rising budgets.

    Returns:
        The budget in the same unit; the smallest one when that run is already as good; None when no run reaches the
        target (more would be extrapolation).
    """
    if len(budgets) < 2:
        raise ValueError(f"an interpolation needs at least two budgets, not {len(budgets)}")
    ordered = sorted(budgets)
    if ordered[0][1] <= target_loss:
        return ordered[0][0]
    for (x0, y0), (x1, y1) in pairwise(ordered):
        if y1 <= target_loss < y0:
            return x0 + (x1 - x0) * (y0 - target_loss) / (y0 - y1)
    return None


def matching_budget(target: Losses, line: Sequence[tuple[float, Losses]]) -> Match | None:
    """Budget at which the line meets the target, over the seeds that are there; as `tokens_to_match`.

    Every loss counts relative to that of the line's first run with the same seed, since runs of one seed share
    initial weights and order of samples: the target's distance is a mean over the seeds that these two share, the
    line's fall one over those that its runs share. A run without a common seed does not count.

    Args:
        line: (budget, final losses by seed) with rising budgets.

    Returns:
        None too where the target has no common seed, or the line no second run.
    """
    first = line[0][1] if line else {}
    points = [(budget, losses) for budget, losses in line if first.keys() & losses.keys()]
    if len(points) < 2 or not first.keys() & target.keys():
        return None
    falls = [(budget, _behind(losses, first)) for budget, losses in points]
    budget = tokens_to_match(_behind(target, first), falls)
    if budget is None:
        return None
    at = next(place for place in range(1, len(falls)) if place == len(falls) - 1 or budget <= falls[place][0])
    return Match(budget, _sensitivity(target, first, points[at - 1 : at + 1], falls[at - 1 : at + 1]))


def loss_noise(target: Losses, first: Losses, gaps: Sequence[Sequence[float]]) -> Noise | None:
    """How far one final loss scatters beside what its seed moves in all runs, in nats a token; None without seeds.

    Two losses make a difference of two runs: where the two whose distance is read share seeds, from its scatter by
    sqrt(1/2); else from `gaps`, distances of other runs to their baseline, a list a run and one a seed. These are
    taken whole: a quiet baseline may have no part in them.
    """
    shared = sorted(target.keys() & first.keys())
    if len(shared) < 2:
        return pool(gaps)
    noise = pool([[target[seed] - first[seed] for seed in shared]])
    assert noise is not None
    return replace(noise, sd=noise.sd / math.sqrt(2))


def _behind(losses: Losses, first: Losses) -> float:
    """Mean loss relative to the first run's, over common seeds."""
    shared = losses.keys() & first.keys()
    return sum(losses[seed] - first[seed] for seed in shared) / len(shared)


def _sensitivity(
    target: Losses,
    first: Losses,
    ends: Sequence[tuple[float, Losses]],
    falls: Sequence[tuple[float, float]],
) -> float:
    """Root of the sum of squares of the budget's derivatives by each loss that it is read from."""
    (x0, y0), (x1, y1) = falls
    if y0 == y1:
        return math.inf
    distance = _behind(target, first)
    per_nat = (x1 - x0) / (y0 - y1)
    by_mean = (
        (target, -per_nat),
        (ends[0][1], per_nat * (distance - y1) / (y0 - y1)),
        (ends[1][1], per_nat * (y0 - distance) / (y0 - y1)),
    )
    of_first = dict.fromkeys(first, 0.0)
    squares = 0.0
    for losses, derivative in by_mean:
        if losses is first:  # nothing relative to itself
            continue
        shared = losses.keys() & first.keys()
        squares += derivative**2 / len(shared)
        for seed in shared:
            of_first[seed] -= derivative / len(shared)
    return math.sqrt(squares + sum(own**2 for own in of_first.values()))
