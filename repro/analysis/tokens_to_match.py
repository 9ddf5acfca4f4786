"""How many more tokens a format needs to reach another one's final loss (Figure 6b, "36 % more tokens").

The paper's 1.36T point lies on the straight line between its runs of 1.25T and 1.5T tokens and is no run of its own,
so the statement is a linear interpolation between final losses of runs with different budgets. That is done here and
nothing more: outside the span of the runs there is no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


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


def tokens_per_loss(budgets: Sequence[tuple[float, float]], at: float) -> float:
    """Tokens that one nat of loss is worth on the line's segment around budget `at`; inf where it is flat."""
    ordered = sorted(budgets)
    for (x0, y0), (x1, y1) in pairwise(ordered):
        if x0 <= at <= x1:
            return abs((x1 - x0) / (y1 - y0)) if y1 != y0 else float("inf")
    raise ValueError(f"budget {at} lies outside {ordered[0][0]} to {ordered[-1][0]}")
