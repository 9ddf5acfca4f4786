"""What of a curve is drawn, and the words about it: its part, its smoothing, its end value, what is recorded.

Does not: draw, read files or judge.
"""

from __future__ import annotations

import pandas as pd

from repro.analysis.paper import Paper
from repro.analysis.readings import END_WINDOW, MIN_END_POINTS, read_at

# Width of the running mean of training losses, as a share of the drawn span.
SMOOTHING = 0.02


def ours_of(table: pd.DataFrame, run: str, quantity: str, panel: str = "main") -> pd.DataFrame:
    """Rows of the run itself (its seed replicas are for the noise only); empty when the table has none."""
    rows = table[(table["run"] == run) & (table["quantity"] == quantity) & (table["panel"] == panel)]
    return rows.sort_values("fraction")


def within(curve: pd.DataFrame, span: tuple[float, float]) -> pd.DataFrame:
    """The part of a paper's curve inside the span; a span that ends at the horizon keeps the paper's overhang."""
    end = span[1] if span[1] < 1 else float("inf")
    return curve[(curve["fraction"] >= span[0]) & (curve["fraction"] <= end)]


def smoothing_points(rows: pd.DataFrame, span: tuple[float, float]) -> int:
    """Width of the running mean of training losses: 2 % of what is drawn, an odd number of points, 1 for none.

    Validation losses are not smoothed: their text is fixed. A fork of few steps is not either, since a mean over
    fewer points at its ends would bend it.
    """
    if len(rows) < 2 or rows["text"].iloc[0] == "validation":
        return 1
    points = round(SMOOTHING * (span[1] - span[0]) / rows["fraction"].diff().median())
    return max(1, points + 1 - points % 2)


def smoothing_note(ours: dict[str, pd.DataFrame], span: tuple[float, float], quantity: str) -> str:
    """States the smoothing that the figure shows, and what its end values average."""
    curves = [rows for rows in ours.values() if len(rows)]
    if not curves:
        return ""
    text = {"train": "training", "validation": "validation"}[curves[0]["text"].iloc[0]]
    widths = sorted({smoothing_points(rows, span) for rows in curves})
    drawn = "as logged" if widths == [1] else f"running mean of {' to '.join(map(str, widths))} logged points"
    least = MIN_END_POINTS[curves[0]["text"].iloc[0]]
    ends = (
        f"mean of the last {100 * END_WINDOW:g} % of the horizon, {least} points at least"
        if least > 1
        else "the last one"
    )
    return f"{text} {quantity}: {drawn}; end values: {ends}"


def no_noise_note(quantity: str) -> str:
    return "no run was repeated with another seed: the noise is unknown" if quantity == "gap" else ""


def end_words(rows: pd.DataFrame, quantity: str, at: float | None = None) -> str:
    """Our value at a fraction of the horizon (None: at the curve's end), or where the run diverged."""
    if rows.empty:
        return "not recorded"
    if (rows["status"] == "diverged").all() and (at is None or rows["fraction"].max() <= at):
        return f"diverged at {100 * rows['fraction'].max():.3g} %"
    reading = read_at(rows, at)
    return "-" if reading is None else format(reading.value, "+.2f" if quantity == "gap" else ".3f")


def paper_end(curve: pd.DataFrame) -> float | None:
    """Mean of a paper's curve over its last half per cent of the horizon; None for an empty one."""
    if curve.empty:
        return None
    tail = curve[curve["fraction"] > curve["fraction"].max() - END_WINDOW / 4]
    return float(tail["value"].mean())


def tier_title(table: pd.DataFrame, paper: Paper, ours: dict[str, pd.DataFrame]) -> str:
    """Names the tier over its panel, and how many of the drawn runs are recorded where some are not."""
    there = sum(len(ours[series.run]) > 0 for series in paper.series)
    some = f", {there} of {len(paper.series)} runs recorded so far" if there < len(paper.series) else ""
    return f"{table['tier'].iloc[0]} tier{some}"
