"""The layout that Figures 2, 6a, 7-14 share: our curves, and the paper's behind them or beside them.

One call draws the curves of paper.yaml's series, in its order and colours, with the end value of each in the legend
(ours, the mean over its seeds, and the paper's in brackets), the other seeds of a run as thin lines, the seed noise
of end values as a bracket beside the axis, and the provenance. Does not: read files, judge.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.analysis import drawing, source_lines
from repro.analysis.arms import noise_of
from repro.analysis.empty_figure import empty_figure
from repro.analysis.paper import Paper, Series
from repro.analysis.places import EXCURSION
from repro.analysis.readings import smooth
from repro.analysis.shown import (
    are_repeated,
    brackets_note,
    end_of,
    end_words,
    ends_early,
    no_noise_note,
    ours_of,
    paper_end,
    seeds_of,
    seeds_words,
    shared_seeds_note,
    smoothing_note,
    smoothing_points,
    tier_title,
    within,
)

LABELS = {
    ("gap", "validation"): "validation loss, difference to {baseline} (%)",
    ("gap", "train"): "training loss, difference to {baseline} (%)",
    ("loss", "validation"): "validation loss (nats a token)",
    ("loss", "train"): "training loss (nats a token)",
}
#: A curve that leaves the axis by less than this share of it makes the axis wider instead.
NEAR = 0.1


def curve_figure(
    table: pd.DataFrame,
    paper: Paper,
    *,
    quantity: str,
    span: tuple[float, float] = (0.0, 1.0),
    read: float | None = None,
    with_gaps: bool = False,
) -> Figure:
    """Our curves of `quantity` ("gap" or "loss") over `span` (fractions of the horizon), and the paper's.

    `read` is the fraction at which end values and noise are read (None: where each curve ends). `with_gaps`: beside
    losses a panel with our gaps to the baseline, which a loss axis that holds the whole run cannot show.
    """
    ours = {series.run: ours_of(table, series.run, quantity) for series in paper.series}
    theirs = {series.run: within(paper.curve(series.run), span) for series in paper.series}
    if quantity == "gap" and all(rows.empty for rows in ours.values()):
        return empty_figure(table, paper)  # a baseline alone has no gap
    start = drawing.SETTLED[quantity]
    our_range = drawing.settled_range([within(rows, span) for rows in ours.values()], start=start)
    paper_range = drawing.settled_range([rows for rows in theirs.values() if len(rows)], start=start)
    overlay = quantity == "gap" and drawing.same_order(our_range, paper_range)
    gaps = {series.run: ours_of(table, series.run, "gap") for series in paper.series} if with_gaps else {}
    has_gaps = any(len(rows) for rows in gaps.values())
    noise = noise_of(table, paper, at=read) if quantity == "gap" or has_gaps else None

    # Each run with several seeds has a second line, and two entries say what is drawn of them.
    repeated = sum(len(seeds_of(rows)) > 1 for rows in ours.values())
    lines_of_legend = -(-(len(paper.series) + 2 + repeated + 2 * bool(repeated)) // 2)
    panels = (1 if overlay else 2) + has_gaps
    figure = drawing.new_figure((5.4, 7.6, 11.0)[panels - 1], 3.65 + 0.16 * lines_of_legend)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    draw_ours(
        axes[0],
        table,
        paper,
        ours,
        quantity=quantity,
        span=span,
        paper_ends=theirs,
        read=read,
        overlay=overlay,
    )
    axes[0].set_title(tier_title(table, paper, ours))
    extra = []
    if overlay:
        for series in paper.series:
            drawing.paper_curve(axes[0], theirs[series.run], series, faint=True)
        drawing.set_range(axes[0], our_range, paper_range, (0.0, 0.0))
        overhang = _last(theirs.values())
        axes[0].set_xlim(right=max(axes[0].get_xlim()[1], 100 * overhang))
        extra.append(drawing.paper_handle())
    else:
        drawing.set_range(axes[0], our_range, (0.0, 0.0) if quantity == "gap" else None)
        draw_papers(axes[-1], paper, theirs, quantity=quantity, span=span)
    if has_gaps:
        _gaps_panel(axes[1], table, paper, gaps, span=span)
    of_gaps = axes[1] if has_gaps else axes[0]
    has_gaps = has_gaps or quantity == "gap"
    beyond = beyond_axis(of_gaps, paper, gaps or ours, span) if has_gaps else ""
    if are_repeated(ours):
        extra += drawing.seeds_handles()
    extra += drawing.noise_bracket(of_gaps, noise.limit(1) if noise else None)
    drawing.legend_below(figure, axes[0], extra, columns=2 if overlay else 3)
    notes = [
        smoothing_note(ours, span, quantity),
        noise.words() if noise else no_noise_note("gap" if has_gaps else quantity),
    ]
    here, there = (
        label.partition(" loss")[0] for label in (axes[0].get_ylabel(), paper.stated["axes"]["main"])
    )
    if here != there:
        notes.append(f"not the same measure: {here} loss here, {there} loss in the paper")
    if quantity == "gap":
        notes.append(brackets_note(paper, theirs))
    notes += [shared_seeds_note(table, paper, read) if has_gaps else "", beyond]
    return drawing.finish(
        figure, paper.title, source_lines.provenance(table, *notes), source_lines.stand_in(table)
    )


def _gaps_panel(
    axes: Axes,
    table: pd.DataFrame,
    paper: Paper,
    gaps: dict[str, pd.DataFrame],
    *,
    span: tuple[float, float],
) -> None:
    """Our gaps beside our losses, whose legend is theirs too."""
    none = {run: rows.iloc[:0] for run, rows in gaps.items()}
    draw_ours(axes, table, paper, gaps, quantity="gap", span=span, paper_ends=none)
    found = drawing.settled_range(
        [within(rows, span) for rows in gaps.values()], start=drawing.SETTLED["gap"]
    )
    drawing.set_range(axes, found, (0.0, 0.0))
    difference = axes.get_ylabel().rpartition(" loss, ")[2]
    axes.set_ylabel(difference)
    axes.set_title(f"the same, {difference.removesuffix(' (%)')}")


def beyond_axis(
    axes: Axes, paper: Paper, ours: dict[str, pd.DataFrame], span: tuple[float, float] = (0.0, 1.0)
) -> str:
    """Says which of our drawn curves leave the y-axis, how far and where, and marks the farthest point on each side.

    Call it once the y-range is set; "" when every curve stays inside. A curve that leaves it by little makes the axis
    wider. Else a triangle on the edge shows the place, and the number stands beside it where nothing is
    (repro.analysis.places).
    """
    farthest = []
    for series in paper.series:
        seeds = seeds_of(within(ours[series.run], span))
        smoothed = [smooth(rows["value"], smoothing_points(rows, span)).dropna() for rows in seeds]
        values = pd.concat(smoothed) if smoothed else pd.Series(dtype=float)
        for place in [] if values.empty else {values.idxmin(), values.idxmax()}:
            at = float(100 * ours[series.run].loc[place, "fraction"])
            farthest.append((float(values[place]), at, series))
    farthest.sort(key=lambda found: found[0])
    _widen(axes, *(farthest[0][0], farthest[-1][0]) if farthest else ())
    low, high = axes.get_ylim()
    beyond = [found for found in farthest if not low <= found[0] <= high]
    lowest = [found for found in beyond[:1] if found[0] < low]
    highest = [found for found in beyond[-1:] if found[0] > high]
    for (value, at, series), marker, edge, side in (
        *((found, "v", low, "bottom") for found in lowest),
        *((found, "^", high, "top") for found in highest),
    ):
        color = drawing.PALETTE[series.color]
        axes.plot(at, edge, marker=marker, ms=4, color=color, mec="white", mew=0.5, zorder=5, clip_on=False)
        words = f"to {value:+.3g} %"
        axes.text(at, edge, words, ha="center", va=side, fontsize=6, color=color, zorder=5, gid=EXCURSION)
    places = ", ".join(f"{series.label} {value:+.3g} % at {at:.3g} %" for value, at, series in beyond)
    return f"beyond the y-axis: {places} of the horizon" if places else ""


def _widen(axes: Axes, *extremes: float) -> None:
    """Makes the y-axis hold the values that lie beyond it by less than NEAR of it."""
    low, high = axes.get_ylim()
    reach = high - low
    for value in extremes:
        if low - NEAR * reach <= value < low:
            axes.set_ylim(bottom=value - reach / 24)
        if high < value <= high + NEAR * reach:
            axes.set_ylim(top=value + reach / 24)


def draw_seeds(
    axes: Axes,
    rows: pd.DataFrame,
    series: Series,
    *,
    span: tuple[float, float],
    label: str,
    read: float | None = None,
    with_mean: bool = True,
) -> None:
    """A run's curve, thin ones of its other seeds, and where end values are read (`read`) a mark of their mean."""
    smoothing = smoothing_points(rows, span)
    for number, own in enumerate(seeds_of(rows)):
        drawing.curve(axes, own, series, label="" if number else label, smoothing=smoothing, thin=number > 0)
    mean = end_of(rows, read) if with_mean and len(seeds_of(rows)) > 1 else None
    if mean and mean.value is not None:
        drawing.mean_mark(axes, read or float(rows["fraction"].max()), mean.value, series)


def draw_ours(
    axes: Axes,
    table: pd.DataFrame,
    paper: Paper,
    ours: dict[str, pd.DataFrame],
    *,
    quantity: str,
    span: tuple[float, float],
    paper_ends: dict[str, pd.DataFrame],
    read: float | None = None,
    overlay: bool = False,
) -> None:
    """Our curves of all seeds, with end values in the labels, and axes.

    A series that is not recorded stands in the legend all the same, as the paper's curve is drawn: faint in an
    overlay, else full in a panel of its own.
    """
    text = table["text"].iloc[0]
    baseline = table.loc[table["role"] == "baseline", "run"].iloc[0]
    horizon = table.loc[table["role"] == "baseline", "horizon_tokens"].iloc[0]
    for series in paper.series:
        rows = ours[series.run]
        early = ends_early(rows, ours.values()) if read is None else None
        stated = paper_end(paper, series.run, paper_ends[series.run], read or early)
        bracket = "" if stated is None or quantity == "loss" else f" ({stated:+.2f})"
        unit = " %" if quantity == "gap" and (len(rows) or bracket) else ""
        place = f" at {100 * early:.0f} %" if early else ""
        label = f"{series.label}  {end_words(rows, quantity, read)}{bracket}{unit}{place}"
        if seeds := seeds_words(rows, quantity, read):
            label += f"\n{seeds}"
        if len(rows):
            # Means of losses lie on each other, as the losses do.
            draw_seeds(axes, rows, series, span=span, label=label, read=read, with_mean=quantity == "gap")
        else:
            nothing = pd.DataFrame({"fraction": [], "value": []})
            drawing.paper_curve(axes, nothing, series, faint=overlay or stated is None, label=label)
    if quantity == "gap":
        axes.axhline(0, color="#000000", lw=0.8, zorder=2)
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
    panel: str = "main",
) -> None:
    """The paper's curves, `panel` of paper.csv, in a panel of their own."""
    for series in paper.series:
        if len(theirs[series.run]):
            drawing.paper_curve(axes, theirs[series.run], series, faint=False, label=series.label)
    stated = paper.stated.get("y_range")
    settled = drawing.settled_range(list(theirs.values()), start=drawing.SETTLED[quantity])
    drawing.set_range(axes, tuple(stated) if stated else settled)
    if quantity == "gap":
        axes.axhline(0, color="#000000", lw=0.8)
    axes.set_ylabel(paper.stated["axes"][panel])
    axes.set_title(f"the paper ({drawing.PAPER_NAME})")
    horizon = paper.stated["horizon_trillions"] * 1e12
    drawing.horizon_axes(axes, horizon, start=span[0], end=max(span[1], _last(theirs.values())), paper=True)


def _last(curves: Iterable[pd.DataFrame]) -> float:
    ends = [rows["fraction"].max() for rows in curves if len(rows)]
    last = max(ends, default=1.0)
    return last if last > 1.0 else 0.0
