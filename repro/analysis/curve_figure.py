"""The layout that Figures 2, 6a, 7-14 share: our curves, and the paper's behind them or beside them.

One call draws the curves of paper.yaml's series, in its order and colours, with the end value of each in the legend
(ours, over the seeds that all runs share, and the paper's in brackets), the other seeds of a run as dotted lines, the
means and the seed noise of end values beside the axis, and the provenance. The legend explains of these what is
drawn. Does not: read files, judge.
"""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.analysis import drawing, seed_marks, source_lines
from repro.analysis.arms import noise_of
from repro.analysis.curve_panels import beyond_axis, draw_ours, draw_papers, draws_means, last_end
from repro.analysis.empty_figure import empty_figure
from repro.analysis.paper import Paper
from repro.analysis.shown import (
    are_repeated,
    brackets_note,
    first_numbers_note,
    have_diverged,
    no_noise_note,
    ours_of,
    shared_seeds,
    shared_seeds_note,
    smoothing_note,
    tier_title,
    within,
)


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
    compares = any(
        len(rows) for rows in theirs.values()
    )  # an element of one's own has no curves of the paper
    overlay = quantity == "gap" and (not compares or drawing.same_order(our_range, paper_range))
    gaps = {series.run: ours_of(table, series.run, "gap") for series in paper.series} if with_gaps else {}
    beside = any(len(rows) for rows in gaps.values())
    shows_gaps = beside or quantity == "gap"
    noise = noise_of(table, paper, at=read) if shows_gaps else None
    curves = [*ours.values(), *gaps.values()]
    shared = shared_seeds(curves, read)

    figure, main, papers, of_gaps = _panels(overlay=overlay, beside=beside)
    draw_ours(
        main,
        table,
        paper,
        ours,
        quantity=quantity,
        span=span,
        paper_ends=theirs,
        read=read,
        overlay=overlay,
        gaps=gaps,
        shared=shared,
    )
    of_gaps.set_title(tier_title(table, paper, ours))
    extra = []
    if overlay:
        for series in paper.series:
            drawing.paper_curve(main, theirs[series.run], series, faint=True)
        drawing.set_range(main, our_range, paper_range, (0.0, 0.0))
        overhang = last_end(theirs.values())
        main.set_xlim(right=max(main.get_xlim()[1], 100 * overhang))
        extra += [drawing.paper_handle()] if compares else []
    else:
        drawing.set_range(main, our_range, (0.0, 0.0) if quantity == "gap" else None)
        if compares:
            draw_papers(papers, paper, theirs, quantity=quantity, span=span)
        else:
            papers.set_visible(False)
    if beside:
        main.set_title("the same runs, losses")
        _gaps_panel(of_gaps, table, paper, gaps, span=span, shared=shared)
    behind = theirs.values() if overlay else ()
    beyond = beyond_axis(of_gaps, paper, gaps or ours, span, theirs=behind) if shows_gaps else ""
    if are_repeated(ours):
        extra += seed_marks.seeds_handles(
            means=draws_means(table, paper), marked=shared if shows_gaps else ()
        )
    if have_diverged(ours):
        extra.append(drawing.diverged_handle())
    extra += seed_marks.noise_bracket(of_gaps, noise)
    drawing.make_room(figure, drawing.legend_below(figure, main, extra, columns=2 if overlay else 3))
    notes = [
        smoothing_note(ours, span, quantity),
        noise.words() if noise else no_noise_note("gap" if shows_gaps else quantity),
    ]
    if quantity == "gap":
        notes.append(brackets_note(paper, theirs))
    notes += [
        first_numbers_note(curves, read),
        shared_seeds_note(table, paper, read) if shows_gaps else "",
        beyond,
    ]
    return drawing.finish(
        figure, paper.title, source_lines.provenance(table, *notes), source_lines.stand_in(table)
    )


def _panels(*, overlay: bool, beside: bool) -> tuple[Figure, Axes, Axes | None, Axes]:
    """A figure without room for its legend: axes of our curves, of the paper's (None: on ours) and of our gaps.

    `beside`: our gaps have a panel of their own, the largest; beside it losses stand over the paper's, on one x-axis.
    """
    if beside:
        figure = drawing.new_figure(8.0, 5.0)
        parts = figure.subplot_mosaic([["gaps", "ours"], ["gaps", "paper"]], width_ratios=(1.45, 1))
        return figure, parts["ours"], parts["paper"], parts["gaps"]
    figure = drawing.new_figure(6.0 if overlay else 7.6, 4.2)
    main, *others = figure.subplots(1, 1 if overlay else 2, squeeze=False)[0]
    return figure, main, others[0] if others else None, main


def _gaps_panel(
    axes: Axes,
    table: pd.DataFrame,
    paper: Paper,
    gaps: dict[str, pd.DataFrame],
    *,
    span: tuple[float, float],
    shared: Collection[int],
) -> None:
    """Our gaps beside our losses, whose legend is theirs too."""
    none = {run: rows.iloc[:0] for run, rows in gaps.items()}
    draw_ours(axes, table, paper, gaps, quantity="gap", span=span, paper_ends=none, shared=shared)
    found = drawing.settled_range(
        [within(rows, span) for rows in gaps.values()], start=drawing.SETTLED["gap"]
    )
    drawing.set_range(axes, found, (0.0, 0.0))
