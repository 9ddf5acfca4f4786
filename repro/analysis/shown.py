"""What of a curve is drawn, and the words about it: its part, its smoothing, its end value, what is recorded.

Does not: draw, read files or judge.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    points = f"of {least} points" if least > 1 else "of one validation"
    ends = f"mean over the last {100 * END_WINDOW:g} % of the horizon, {points} at least"
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


def paper_end(paper: Paper, run: str, curve: pd.DataFrame, at: float | None = None) -> float | None:
    """The paper's value beside ours: the end value that a claim states for the run.

    Where none does, the mean of `curve` over END_WINDOW before `at`, a fraction of the horizon (None, or beyond it:
    where the curve ends); None for an empty curve.
    """
    if run in paper.drawn_ends:
        return paper.drawn_ends[run]
    if curve.empty:
        return None
    end = min(curve["fraction"].max(), float("inf") if at is None else at)
    inside = (curve["fraction"] > end - END_WINDOW) & (curve["fraction"] <= end)
    return float(curve.loc[inside, "value"].mean())


def brackets_note(paper: Paper, curves: dict[str, pd.DataFrame]) -> str:
    """Says what stands in brackets: values of the claims, and of which curves this project's own reading."""
    if all(curve.empty for curve in curves.values()):
        return ""
    read = [s.label for s in paper.series if len(curves[s.run]) and s.run not in paper.drawn_ends]
    note = "in brackets: the paper's end values, read off its curves (configs/claims.yaml)"
    return note + (f"; {', '.join(read)}: its curve's mean over the same 2 % as ours" if read else "")


def ends_early(rows: pd.DataFrame, curves: Iterable[pd.DataFrame]) -> float | None:
    """Where a run that did not diverge ends, a fraction of the horizon, if that is before the others do."""
    if rows.empty or (rows["status"] == "diverged").all():
        return None
    end = float(rows["fraction"].max())
    return end if end < max(curve["fraction"].max() for curve in curves if len(curve)) - END_WINDOW else None


def tier_title(table: pd.DataFrame, paper: Paper, ours: dict[str, pd.DataFrame]) -> str:
    """Names the tier over its panel, and where some runs are not recorded how many are, the baseline among them."""
    drawn = {series.run for series in paper.series}
    baseline = (
        set(table.loc[table["role"] == "baseline", "run"]) - drawn
    )  # recorded, or there is nothing to draw
    there = sum(len(ours[run]) > 0 for run in drawn) + len(baseline)
    needed = len(drawn) + len(baseline)
    some = f", {there} of {needed} runs recorded so far" if there < needed else ""
    return f"{table['tier'].iloc[0]} tier{some}"
