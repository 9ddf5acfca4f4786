"""The few numbers that are read off one curve of a tidy table: a running mean, an end value, a line through a part.

A curve is the rows of one run and quantity, ordered by tokens (repro.analysis.curves.select). Smoothing is a centred
running mean whose width the caller names and the figure states; an end value is a mean over a short window of
unsmoothed points. Does not: collect curves, average over seeds (repro.analysis.arms), draw or judge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

# "At the end" means the mean of the last 2 % of the horizon, but of at least three logged training losses: one
# training batch is noise. Validation text is fixed, so its last point alone is already a fair reading.
END_WINDOW = 0.02
MIN_END_POINTS = {"train": 3, "validation": 1}
# Fractions of the horizon closer than this are one place: 0.8 - 0.02 is not 0.78 to the last bit.
_ROUNDING = 1e-9


def smooth(values: pd.Series, points: int) -> pd.Series:
    """Centred running mean over `points` values, an odd number; 1 leaves them as they are.

    NaN where the window is not full (at both ends, and around a missing value), so that the last drawn value is a
    mean over as many points as every other.
    """
    assert points >= 1, points
    assert points % 2, f"a centred mean over {points} points has no centre"
    return values.rolling(points, center=True).mean()


@dataclass(frozen=True)
class Reading:
    """One number read off a curve: the mean over a window, and how many logged points it rests on."""

    value: float
    points: int
    fraction: float


def read_at(curve: pd.DataFrame, fraction: float | None = None) -> Reading | None:
    """Mean of a curve over END_WINDOW before `fraction` of the horizon (None: before the curve's last point).

    None when the curve does not reach within one window of `fraction`, or holds a non-finite value there: a diverged
    run has no end value.
    """
    end = curve["fraction"].max() if fraction is None else fraction
    before = curve[curve["fraction"] <= end + _ROUNDING]
    if before.empty or before["fraction"].max() < end - max(END_WINDOW, _spacing(curve)) - _ROUNDING:
        return None
    inside = before[before["fraction"] > end - END_WINDOW + _ROUNDING]
    least = MIN_END_POINTS[curve["text"].iloc[0]]
    if len(inside) < least:
        inside = before.tail(least)
    if inside["value"].isna().any():
        return None
    return Reading(float(inside["value"].mean()), len(inside), float(inside["fraction"].max()))


@dataclass(frozen=True)
class Line:
    """Least-squares line through a part of a curve, x in per cent of the horizon; needs three points at least."""

    slope: float
    slope_error: float
    center: float
    level: float
    residual_sd: float
    points: int

    def at(self, fraction: float) -> float:
        """Value of the line at a fraction of the horizon."""
        return self.level + self.slope * (100 * fraction - self.center)

    def error_beyond(self, fractions: Sequence[float]) -> float:
        """Standard error of the mean distance of further points, at `fractions`, from the line.

        Of their scatter and of the line's: of its level, and of its slope times the distance from its centre.
        """
        of_levels = self.residual_sd * math.sqrt(1 / len(fractions) + 1 / self.points)
        away = 100 * sum(fractions) / len(fractions) - self.center
        return math.hypot(of_levels, self.slope_error * away)


def fit_line(curve: pd.DataFrame, start: float, end: float) -> Line | None:
    """The line through a curve between two fractions, both included; None below three finite points."""
    inside = (curve["fraction"] >= start - _ROUNDING) & (curve["fraction"] <= end + _ROUNDING)
    part = curve[inside].dropna(subset=["value"])
    if len(part) < 3:
        return None
    x, y = 100 * part["fraction"].to_numpy(), part["value"].to_numpy()
    center, level = x.mean(), y.mean()
    spread = ((x - center) ** 2).sum()
    slope = ((x - center) * (y - level)).sum() / spread
    sd = float(np.sqrt(((y - level - slope * (x - center)) ** 2).sum() / (len(x) - 2)))
    return Line(float(slope), sd / float(np.sqrt(spread)), float(center), float(level), sd, len(x))


def _spacing(curve: pd.DataFrame) -> float:
    steps = np.diff(np.sort(curve["fraction"].to_numpy()))
    return float(np.median(steps)) if len(steps) else 0.0
