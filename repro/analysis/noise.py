"""Seed noise: how far two runs end apart that differ in nothing but the seed.

    sd        pooled standard deviation of the end gaps of a model's replicas: sqrt(sum of squares / dof)
    limit     t(dof) x sd x sqrt(1/n): half the confidence interval of a mean gap over n seeds, and of the paired
              difference of two runs over the same n seeds; t(dof) x sd x sqrt(1/n1 + 1/n2) over different ones

Gaps are paired where the baseline has a replica with the same seed (curves.curve_table); where it has none, the run's
own scatter is widened by sqrt(2), as if the baseline scattered as much. A gap is itself the paired difference of two
runs of one seed; the difference of two recipes is taken to scatter as much between seeds as a gap does. t is
two-sided at 95 %, divided by the number of comparisons (Bonferroni). Without replicas there is no estimate, and the
verdicts say so.

The paper reports no seeds. The one repetition that it draws, the configuration "last 4 in BF16" in Figure 8 (end
-3.23 %) and in Figures 9 and 11 (-2.96, -2.92), is 0.3 %-points apart; PAPER_FLOOR takes that for runs of the paper's
own size that have no replicas. Does not: estimate noise of one run over time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from repro.analysis.curves import select
from repro.analysis.readings import read_at

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Noise:
    """Seed noise of an end gap in %-points; `flat` replaces the estimate by one stated limit."""

    sd: float
    dof: int
    num_runs: int
    flat: float | None = None

    def limit(self, *num_seeds: int, comparisons: int = 1) -> float:
        """What the difference of means over `num_seeds` runs each must exceed; one number = against zero."""
        if self.flat is not None:
            return self.flat
        t = t_quantile(1 - (1 - CONFIDENCE) / (2 * comparisons), self.dof)
        return t * self.sd * math.sqrt(sum(1 / n for n in num_seeds))

    def paired_limit(self, seeds_a: int, seeds_b: int, *, comparisons: int = 1) -> float:
        """Half the confidence interval of the difference of two runs' mean gaps.

        Runs over equally many seeds are read over the same ones (arms.arms): they share initial weights, order of
        samples and baseline, so their difference is paired, as each gap is, and has a gap's noise once.
        """
        if seeds_a == seeds_b:
            return self.limit(seeds_a, comparisons=comparisons)
        return self.limit(seeds_a, seeds_b, comparisons=comparisons)

    def words(self) -> str:
        """One clause for figures and reasons."""
        if self.flat is not None:
            return f"no replicas; {self.flat} points apart in the paper's own repetition"
        degrees = "1 degree" if self.dof == 1 else f"{self.dof} degrees"
        return f"seed noise: sd {self.sd:.2g} points, {self.num_runs} runs, {degrees} of freedom"


PAPER_FLOOR = Noise(sd=math.nan, dof=0, num_runs=0, flat=0.3)


def seed_noise(table: pd.DataFrame, *, at: float | None = None) -> Noise | None:
    """Pooled noise of the replicas in a tidy curve table; None when nothing was repeated.

    Args:
        at: fraction of the horizon where the gaps are read; None: where each group of replicas ends.
    """
    squares, dof, num_runs = 0.0, 0, 0
    gaps = table[table["quantity"] == "gap"]
    replicas = gaps[gaps["role"] == "replica"]
    for original, rows in replicas.groupby("replica_of"):
        names = list(dict.fromkeys(rows["run"]))
        paired = bool(rows["paired"].all())
        if original not in names and original in set(gaps["run"]):
            names.insert(0, original)
        readings = [read_at(select(gaps, name, "gap"), at) for name in names]
        values = [reading.value for reading in readings if reading is not None]
        if len(values) < 2:
            continue
        mean = sum(values) / len(values)
        widening = 1.0 if paired else 2.0
        squares += widening * sum((value - mean) ** 2 for value in values)
        dof += len(values) - 1
        num_runs += len(values)
    return Noise(math.sqrt(squares / dof), dof, num_runs) if dof else None


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
