"""Seed noise: how far two runs end apart that differ in nothing but the seed, and the 95 % intervals that follow.

    own_limit   t(n - 1) x sd x sqrt(1/n): half the confidence interval of a mean over n >= 2 seeds, from the scatter
                of these n values alone. This is Student's paired interval: a gap is the difference of two runs of one
                seed, and so is the difference of two gaps
    limit       t(dof) x sd x sqrt(1/n1 + 1/n2): the same for what has one seed, borrowed from the scatter of others
    sd          pooled standard deviation of the end gaps of a model's replicas: sqrt(sum of squares / sum of (n-1)),
                those of a figure's runs and of what it borrows from (noise_from of curves.curve_table)
    dof         the seeds of the run that has most of them, less one

Runs of one seed share initial weights, order of samples and, as gaps, the baseline. What these move drops out of a
paired difference, by how much depends on the pair (two forks of a run scatter less than a fork and the baseline), so
its own scatter is the estimate that holds. And more runs of the same seeds make `sd` steadier, but are no further
independent observations: with a noisy baseline all gaps of a seed move together.

What has one seed borrows `limit`: a gap as it is, the difference of two gaps as if the two were independent, sqrt(2).
That is the most while gaps of one seed don't move against each other; with a quiet baseline it is reached. Two seeds
are taken as they are, although t(1) = 12.7. Other pairs could lend degrees of freedom only if all pairs scattered
alike, and a run that switches for its last 1 % does not scatter as one that forks at 34 %.

Gaps are paired where the baseline has a replica with the same seed (curves.curve_table). Where it has none, a
borrowed gap is widened by sqrt(2), as if the baseline scattered as much, and the mean of n seeds of one's own by that
one run of the baseline: sqrt(1/n + 1). t is two-sided at 95 %, divided by the number of comparisons (Bonferroni).
Without replicas there is no estimate, and the verdicts say so.

A run of which one seed ends and another diverged, or lost its baseline so, scatters without bound: the scatter of the
seeds that survived is not its noise, and `sd` is infinite. A run that diverged with every seed says nothing of it.

The paper reports no seeds. The one repetition that it draws, the configuration "last 4 in BF16" in Figure 8 (end
-3.23 %) and in Figures 9 and 11 (-2.96, -2.92), is 0.3 %-points apart; PAPER_FLOOR takes that for runs of the paper's
own size that have no replicas. Does not: estimate noise of one run over time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import stdev

import numpy as np
import pandas as pd

from repro.analysis.curves import select
from repro.analysis.readings import read_at

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Noise:
    """Seed noise of an end gap in %-points; `flat` replaces the estimate by one stated limit.

    `source` says in words which runs it is of; an infinite `sd` belongs to runs of which not all seeds ended.
    """

    sd: float
    dof: int
    num_runs: int
    flat: float | None = None
    source: str = ""

    def limit(self, *num_seeds: int, comparisons: int = 1) -> float:
        """What the difference of means over `num_seeds` runs each must exceed; one number = against zero."""
        if self.flat is not None:
            return self.flat
        return _t(self.dof, comparisons) * self.sd * math.sqrt(sum(1 / n for n in num_seeds))

    def words(self) -> str:
        """One clause for figures and reasons."""
        if self.flat is not None:
            return f"no replicas; {self.flat:.2g} points apart in the paper's own repetition"
        if math.isinf(self.sd):
            return f"seed noise without bound: {self.source}"
        degrees = "1 degree" if self.dof == 1 else f"{self.dof} degrees"
        of, runs = (f" of {self.source}", "") if self.source else ("", f" {self.num_runs} runs,")
        return f"seed noise{of}: sd {self.sd:.2g} points,{runs} {degrees} of freedom"


PAPER_FLOOR = Noise(sd=math.nan, dof=0, num_runs=0, flat=0.3)


def own_limit(values: Sequence[float], *, comparisons: int = 1, is_paired: bool = True) -> float:
    """Half the confidence interval of the mean of `values`, one a seed, at least two, from their own scatter.

    Args:
        is_paired: false where the values are gaps to one and the same run of the baseline.
    """
    n = len(values)
    return _t(n - 1, comparisons) * stdev(values) * math.sqrt(1 / n + (0 if is_paired else 1))


def pool(groups: Sequence[Sequence[float]], widening: Sequence[float] | None = None) -> Noise | None:
    """Noise from groups of values, one group a run and one value a seed; None when no group has two.

    `widening` multiplies the variance of each group. Groups over the same seeds move together, so the degrees of
    freedom are those of the largest one.
    """
    repeated = [
        (values, factor)
        for values, factor in zip(groups, widening or [1.0] * len(groups), strict=True)
        if len(values) > 1
    ]
    if not repeated:
        return None
    squares = sum(factor * stdev(values) ** 2 * (len(values) - 1) for values, factor in repeated)
    sizes = [len(values) for values, _ in repeated]
    return Noise(math.sqrt(squares / (sum(sizes) - len(sizes))), max(sizes) - 1, sum(sizes))


def seed_noise(table: pd.DataFrame, *, at: float | None = None) -> Noise | None:
    """Pooled noise of the replicas in a tidy curve table; None when nothing was repeated to its end.

    Args:
        at: fraction of the horizon where the gaps are read; None: where each group of replicas ends.
    """
    groups, widening, names, lost = [], [], [], []
    gaps = table[table["quantity"] == "gap"]
    replicas = gaps[gaps["role"] == "replica"]
    for original, rows in replicas.groupby("replica_of"):
        runs = list(dict.fromkeys(rows["run"]))
        if original not in runs and original in set(gaps["run"]):
            runs.insert(0, original)
        curves = [select(gaps, run, "gap") for run in runs]
        values = [reading.value for curve in curves if (reading := read_at(curve, at)) is not None]
        number_lost = sum(_is_lost(curve, at) for curve in curves)
        if values and number_lost:
            lost.append(
                f"{number_lost} of {len(values) + number_lost} seeds of {original} diverged or lost its baseline"
            )
        groups.append(values)
        names.append(f"{original} ({len(values)} seeds)")
        widening.append(1.0 if rows["paired"].all() else 2.0)
    if lost:
        return Noise(math.inf, 1, len(lost), source="; ".join(lost))
    found = pool(groups, widening)
    repeated = [name for name, values in zip(names, groups, strict=True) if len(values) > 1]
    return None if found is None else replace(found, source=" and ".join(repeated))


def _is_lost(curve: pd.DataFrame, at: float | None) -> bool:
    """Whether the last row of a gap up to `at` (None: of all) has no value: its run diverged, or its baseline."""
    before = curve if at is None else curve[curve["fraction"] <= at + 1e-9]
    return len(before) > 0 and bool(math.isnan(before["value"].iloc[-1]))


def _t(dof: int, comparisons: int) -> float:
    return t_quantile(1 - (1 - CONFIDENCE) / (2 * comparisons), dof)


@lru_cache
def t_quantile(probability: float, dof: int) -> float:
    """Quantile of Student's t distribution, for probability in [0.5, 1) and dof >= 1; right to 4 digits.

    With t = sqrt(dof) tan(a), the distribution is the normalised integral of cos^(dof-1) from -pi/2 to a: the
    trapezoidal rule on a fine grid, turned around by linear interpolation.
    """
    assert 0.5 <= probability < 1, probability
    assert dof >= 1, dof
    angles = np.linspace(0.0, math.pi / 2, 100_001)
    density = np.cos(angles) ** (dof - 1)
    integral = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = np.interp((2 * probability - 1) * integral[-1], integral, angles)
    return math.sqrt(dof) * math.tan(angle)
