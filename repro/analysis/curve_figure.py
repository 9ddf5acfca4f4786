"""The layout that Figures 2, 6a, 7-14 share: our curves, and the paper's behind them or beside them.

One call draws the curves of paper.yaml's series, in its order and colours, with the end value of each in the legend
(ours, and the paper's in brackets), the seed noise as a grey band around zero, and the provenance. Does not: read
files, judge.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from repro.analysis import drawing
from repro.analysis.arms import noise_of
from repro.analysis.empty_figure import empty_figure
from repro.analysis.noise import Noise
from repro.analysis.paper import Paper
from repro.analysis.readings import END_WINDOW, MIN_END_POINTS, read_at, smooth

# Width of the running mean of training losses, as a share of the drawn span.
SMOOTHING = 0.02

LABELS = {
    ("gap", "validation"): "validation loss, difference to {baseline} (%)",
    ("gap", "train"): "training loss, difference to {baseline} (%)",
    ("loss", "validation"): "validation loss (nats a token)",
    ("loss", "train"): "training loss (nats a token)",
}


def curve_figure(
    table: pd.DataFrame,
    paper: Paper,
    *,
    quantity: str,
    span: tuple[float, float] = (0.0, 1.0),
    read: float | None = None,
) -> Figure:
    """Our curves of `quantity` ("gap" or "loss") over `span` (fractions of the horizon), and the paper's.

    `read` is the fraction at which end values and noise are read (None: where each curve ends).
    """
    ours = {series.run: ours_of(table, series.run, quantity) for series in paper.series}
    theirs = {series.run: within(paper.curve(series.run), span) for series in paper.series}
    if quantity == "gap" and all(rows.empty for rows in ours.values()):
        return empty_figure(table, paper)  # a baseline alone has no gap
    start = drawing.SETTLED[quantity]
    our_range = drawing.settled_range([within(rows, span) for rows in ours.values()], start=start)
    paper_range = drawing.settled_range([rows for rows in theirs.values() if len(rows)], start=start)
    overlay = quantity == "gap" and drawing.same_order(our_range, paper_range)
    noise = noise_of(table, paper, at=read) if quantity == "gap" else None

    lines_of_legend = -(-(len(paper.series) + 2) // 2)
    figure = drawing.new_figure(5.4 if overlay else 7.6, 3.5 + 0.16 * lines_of_legend)
    axes = figure.subplots(1, 1 if overlay else 2, squeeze=False)[0]
    draw_ours(
        axes[0], table, paper, ours, quantity=quantity, span=span, noise=noise, paper_ends=theirs, read=read
    )
    extra = []
    if overlay:
        for series in paper.series:
            drawing.paper_curve(axes[0], theirs[series.run], series, faint=True)
        drawing.set_range(axes[0], our_range, paper_range)
        axes[0].set_xlim(right=100 * max(span[1], _last(theirs.values())))
        extra.append(drawing.faint_handle(f"faint, and its last 0.5 % in brackets: {drawing.PAPER_NAME}"))
    else:
        drawing.set_range(axes[0], our_range, (0.0, 0.0) if quantity == "gap" else None)
        draw_papers(axes[1], paper, theirs, quantity=quantity, span=span)
        axes[0].set_title("this tier")
    if noise:
        extra.append(drawing.band_handle(f"inside the seed noise (95 %, ±{noise.limit(1):.2g})"))
    drawing.legend_below(figure, axes[0], extra, columns=2 if overlay else 3)
    notes = [smoothing_note(ours, span, quantity), noise.words() if noise else no_noise_note(quantity)]
    if quantity == "gap":
        notes.append(beyond_axis(axes[0], paper, ours, span))
    return drawing.finish(figure, paper.title, drawing.provenance(table, *notes))


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


def beyond_axis(
    axes: Axes, paper: Paper, ours: dict[str, pd.DataFrame], span: tuple[float, float] = (0.0, 1.0)
) -> str:
    """Says which of our drawn curves leave the y-axis, how far and where, and marks the farthest point on each side.

    Call it once the y-range is set; "" when every curve stays inside.
    """
    low, high = axes.get_ylim()
    beyond = []
    for series in paper.series:
        rows = within(ours[series.run], span).sort_values("fraction")
        values = smooth(rows["value"], smoothing_points(rows, span)).dropna()
        for place in [] if values.empty else {values.idxmin(), values.idxmax()}:
            if not low <= values[place] <= high:
                beyond.append((float(values[place]), float(100 * rows.loc[place, "fraction"]), series))
    beyond.sort(key=lambda found: found[0])
    lowest = [found for found in beyond[:1] if found[0] < low]
    highest = [found for found in beyond[-1:] if found[0] > high]
    for (value, at, series), words, edge, side in (
        *((found, "{:.1f}\n↓", low, "bottom") for found in lowest),
        *((found, "↑\n{:.1f}", high, "top") for found in highest),
    ):
        text = axes.text(at, edge, words.format(value), ha="center", va=side, fontsize=6, zorder=5)
        text.set(
            color=drawing.PALETTE[series.color], path_effects=[withStroke(linewidth=2, foreground="white")]
        )
    places = ", ".join(f"{series.label} to {value:+.3g} % at {at:.3g} %" for value, at, series in beyond)
    return f"beyond the y-axis: {places} of the horizon" if places else ""


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


def draw_ours(
    axes: Axes,
    table: pd.DataFrame,
    paper: Paper,
    ours: dict[str, pd.DataFrame],
    *,
    quantity: str,
    span: tuple[float, float],
    noise: Noise | None,
    paper_ends: dict[str, pd.DataFrame],
    read: float | None = None,
) -> None:
    """Our curves with end values in the labels, axes and noise band."""
    text = table["text"].iloc[0]
    baseline = table.loc[table["role"] == "baseline", "run"].iloc[0]
    horizon = table.loc[table["role"] == "baseline", "horizon_tokens"].iloc[0]
    for series in paper.series:
        rows = ours[series.run]
        stated = paper_end(paper_ends[series.run])
        bracket = "" if stated is None or quantity == "loss" else f" ({stated:+.2f})"
        label = f"{series.label}  {end_words(rows, quantity, read)}{bracket}"
        if len(rows):
            drawing.curve(axes, rows, series, label=label, smoothing=smoothing_points(rows, span))
        elif stated is not None:  # the paper's curve is drawn all the same, and needs a name
            drawing.paper_curve(axes, paper_ends[series.run].head(0), series, faint=True, label=label)
    if quantity == "gap":
        axes.axhline(0, color="#000000", lw=0.8, zorder=2)
        drawing.noise_band(axes, noise.limit(1) if noise else None)
    name = paper.labels.get(baseline, paper.stated.get("baseline", baseline))
    axes.set_ylabel(LABELS[quantity, text].format(baseline=name))
    drawing.horizon_axes(axes, horizon, start=span[0], end=max(span[1], _last(ours.values())))


def draw_papers(
    axes: Axes,
    paper: Paper,
    theirs: dict[str, pd.DataFrame],
    *,
    quantity: str,
    span: tuple[float, float],
) -> None:
    """The paper's curves in a panel of their own."""
    for series in paper.series:
        if len(theirs[series.run]):
            drawing.paper_curve(axes, theirs[series.run], series, faint=False, label=series.label)
    stated = paper.stated.get("y_range")
    settled = drawing.settled_range(list(theirs.values()), start=drawing.SETTLED[quantity])
    drawing.set_range(axes, tuple(stated) if stated else settled)
    if quantity == "gap":
        axes.axhline(0, color="#000000", lw=0.8)
    axes.set_title(f"the paper ({drawing.PAPER_NAME})")
    horizon = paper.stated["horizon_trillions"] * 1e12
    drawing.horizon_axes(axes, horizon, start=span[0], end=max(span[1], _last(theirs.values())), paper=True)


def _last(curves: Sequence[pd.DataFrame]) -> float:
    ends = [rows["fraction"].max() for rows in curves if len(rows)]
    last = max(ends, default=1.0)
    return last if last > 1.0 else 0.0
