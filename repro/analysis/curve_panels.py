"""One panel of curves: ours, those of the paper, and what of ours leaves its y-axis.

Ours stand with the end value of each in the label, over the seeds that all of them share, and below it the mean over
the run's own seeds. Where all runs have the same seeds their mean is drawn thick and each seed dotted, else the first
seed is thick: seeds that only some runs have would shift these.
Does not: make a figure or its legend (repro.analysis.curve_figure), read files, judge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pandas as pd
from matplotlib.axes import Axes

from repro.analysis import drawing, palette, seed_marks
from repro.analysis.paper import Paper, Series
from repro.analysis.places import EXCURSION
from repro.analysis.readings import smooth
from repro.analysis.shown import (
    end_of,
    end_words,
    ends_early,
    gap_words,
    of_seeds,
    paper_end,
    seeds_of,
    seeds_words,
    shared_seeds,
    smoothing_points,
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


def beyond_axis(
    axes: Axes,
    paper: Paper,
    ours: dict[str, pd.DataFrame],
    span: tuple[float, float] = (0.0, 1.0),
    *,
    theirs: Iterable[pd.DataFrame] = (),
) -> str:
    """Says which of our drawn curves leave the y-axis, how far and where, and marks the farthest point on each side.

    Says of `theirs`, the paper's curves behind ours, only how far.

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
        color = palette.PALETTE[series.color]
        axes.plot(at, edge, marker=marker, ms=4, color=color, mec="white", mew=0.5, zorder=5, clip_on=False)
        words = f"to {value:+.3g} %"
        axes.text(at, edge, words, ha="center", va=side, fontsize=6, color=color, zorder=5, gid=EXCURSION)
    places = ", ".join(f"{series.label} {value:+.3g} % at {at:.3g} %" for value, at, series in beyond)
    found = [f"{places} of the horizon" if places else "", _papers_beyond(theirs, low, high)]
    return f"beyond the y-axis: {'; '.join(filter(None, found))}" if any(found) else ""


def _papers_beyond(theirs: Iterable[pd.DataFrame], low: float, high: float) -> str:
    values = pd.concat([pd.Series(dtype=float), *(rows["value"] for rows in theirs)])
    ends = [f"{end:+.3g} %" for end in (values.min(), values.max()) if end < low or end > high]
    return f"the paper's curves to {' and '.join(ends)}" if ends else ""


def _widen(axes: Axes, *extremes: float) -> None:
    """Makes the y-axis hold the values that lie beyond it by less than NEAR of it."""
    low, high = axes.get_ylim()
    reach = high - low
    for value in extremes:
        if low - NEAR * reach <= value < low:
            axes.set_ylim(bottom=value - reach / 24)
        if high < value <= high + NEAR * reach:
            axes.set_ylim(top=value + reach / 24)


def draws_means(table: pd.DataFrame, paper: Paper) -> bool:
    """Whether thick curves are means: all recorded runs, baseline included, have the same seeds; none diverged."""
    baselines = table.loc[table["role"] == "baseline", "run"]
    rows = table[table["replica_of"].isin([*baselines, *(series.run for series in paper.series)])]
    rows = rows[rows["quantity"] == "loss"]
    seeds = {frozenset(own) for _, own in rows.groupby("replica_of")["replica"]}
    return len(seeds) == 1 and len(*seeds) > 1 and not (rows["status"] == "diverged").any()


def _mean_curve(seeds: list[pd.DataFrame]) -> pd.DataFrame:
    """The mean at each place where all seeds have a value."""
    values = pd.concat(seeds).groupby("fraction")["value"]
    means = values.mean()[values.count() == len(seeds)]
    return pd.DataFrame({"fraction": means.index, "value": means.to_numpy(), "status": "completed"})


def draw_seeds(
    axes: Axes,
    rows: pd.DataFrame,
    series: Series,
    *,
    span: tuple[float, float],
    label: str,
    means: bool,
    read: float | None = None,
    marked: Collection[int] = (),
) -> None:
    """A run's curve, dotted ones of its other seeds, and beside the axes a mark of the mean of their end values, read
    at `read` (None: where they end).

    Args:
        means: the curve is the mean, and all seeds are dotted (`draws_means`).
        marked: seeds whose mean the mark is; none of fewer than two.
    """
    smoothing, seeds = smoothing_points(rows, span), seeds_of(rows)
    thick, dotted = (_mean_curve(seeds), seeds) if means else (seeds[0], seeds[1:])
    drawing.curve(axes, thick, series, label=label, smoothing=smoothing)
    for own in dotted:
        drawing.curve(axes, own, series, smoothing=smoothing, other_seed=True)
    mean = end_of(of_seeds(rows, marked), read) if len(marked) > 1 else None
    if mean and mean.value is not None:
        seed_marks.mean_mark(axes, mean.value, palette.PALETTE[series.color])


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
    gaps: dict[str, pd.DataFrame] | None = None,
    shared: Collection[int] | None = None,
) -> None:
    """Our curves of all seeds, with end values in the labels (of losses the `gaps` too), and axes.

    The first numbers of the labels are over the `shared` seeds (None: those that all runs here have).

    A series that is not recorded stands in the legend all the same, as the paper's curve is drawn: faint in an
    overlay, else full in a panel of its own.
    """
    text = table["text"].iloc[0]
    baseline = table.loc[table["role"] == "baseline", "run"].iloc[0]
    horizon = table.loc[table["role"] == "baseline", "horizon_tokens"].iloc[0]
    means = draws_means(table, paper)
    if shared is None:
        shared = shared_seeds([*ours.values(), *(gaps or {}).values()], read)
    for series in paper.series:
        rows = ours[series.run]
        common = of_seeds(rows, shared)
        early = ends_early(rows, ours.values()) if read is None else None
        stated = paper_end(paper, series.run, paper_ends[series.run], read or early)
        end = end_words(common, "loss", read) if quantity == "loss" else gap_words(common, read, stated)
        label = f"{series.label}  {end}" + (f" at {100 * early:.0f} %" if early else "")
        gap = (gaps or {}).get(series.run, rows.iloc[:0])
        if len(gap) and end_of(gap, read).value is not None:
            label += f", {gap_words(of_seeds(gap, shared), read)}"
            seeds = seeds_words(gap, "gap", read, shared)
        else:
            seeds = seeds_words(rows, quantity, read, shared)
        label += f"\n{seeds}" if seeds else ""
        if len(rows):
            # Marks of the means of losses would lie on each other, as the losses do.
            marked = shared if quantity == "gap" else ()
            draw_seeds(axes, rows, series, span=span, label=label, means=means, read=read, marked=marked)
        else:
            nothing = pd.DataFrame({"fraction": [], "value": []})
            drawing.paper_curve(axes, nothing, series, faint=overlay or stated is None, label=label)
    if quantity == "gap":
        axes.axhline(0, color="#000000", lw=0.8, zorder=2)
    name = paper.labels.get(baseline, paper.stated.get("baseline", baseline))
    axes.set_ylabel(LABELS[quantity, text].format(baseline=name))
    drawing.horizon_axes(axes, horizon, start=span[0], end=max(span[1], last_end(ours.values())))


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
    drawing.horizon_axes(
        axes, horizon, start=span[0], end=max(span[1], last_end(theirs.values())), paper=True
    )


def last_end(curves: Iterable[pd.DataFrame]) -> float:
    """Where the longest curve ends beyond the horizon, a fraction of it; 0 where none does."""
    ends = [rows["fraction"].max() for rows in curves if len(rows)]
    last = max(ends, default=1.0)
    return last if last > 1.0 else 0.0
