"""In place of a figure of which nothing is recorded: which runs it waits for, beside the paper's curves.

The paper's curves are drawn panel by panel as paper.csv holds them; `paper.axes` of paper.yaml says what each panel
measures; a panel of single points (Figure 6b) is no curve and left out. An element without curves of the paper (a
table, claims in words) is the words alone.

Does not: draw any number of ours, or read files.
"""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.analysis import drawing
from repro.analysis.curves import missing_names, missing_runs
from repro.analysis.paper import Paper

# Width in inches of the words, and of a panel.
_WORDS, _PANEL = 2.3, 3.6
_MOST_WIDTH = 9.0


def empty_figure(table: pd.DataFrame, paper: Paper) -> Figure:
    """The figure of an element of which no number can be drawn: missing runs, at most their baseline is there."""
    panels = curve_panels(paper)
    width = min(_WORDS + _PANEL * len(panels), _MOST_WIDTH) if panels else 6.0
    figure = drawing.new_figure(width, 3.6 if panels else 2.4)
    shares = [_WORDS, *(_PANEL for _ in panels)]
    words, *axes = figure.subplots(1, len(shares), width_ratios=shares, squeeze=False)[0]
    say_unrecorded(words, table, paper, width=34 if panels else 90)
    for panel, part in zip(panels, axes, strict=True):
        _draw_panel(part, paper, panel)
    if not panels:
        return drawing.finish(figure, paper.title, [])
    named = {}  # a run that several panels show stands in the legend once
    for part in axes:
        for handle, label in zip(*part.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.legend(named.values(), named.keys(), loc="lower center", ncols=3)
    source = paper.stated["source"].replace("+-", "±")
    return drawing.finish(figure, paper.title, [f"curves: {source}"])


def say_unrecorded(axes: Axes, table: pd.DataFrame, paper: Paper, *, width: int) -> None:
    """In place of a panel: that nothing of it is recorded at this tier, and which runs it waits for, in lines of
    `width` characters."""
    axes.axis("off")
    drawn = {series.run for series in paper.series}
    if "baseline" in set(table["role"]):
        found = "no run of it but the baseline is recorded"
    elif drawn and drawn <= set(missing_runs(table)):
        found = "no run of it is recorded"
    else:
        found = "not all that it needs is recorded"
    words = f"{table['tier'].iloc[0]} tier: {found}", f"not recorded: {', '.join(missing_names(table))}"
    text = "\n\n".join(textwrap.fill(part, width, break_on_hyphens=False) for part in words)
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=7, transform=axes.transAxes)


def curve_panels(paper: Paper) -> list[str]:
    """The panels of paper.csv that hold a curve, in its order."""
    points = paper.curves.groupby(["panel", "run"], sort=False).size()
    return list(dict.fromkeys(panel for (panel, _), number in points.items() if number > 1))


def _draw_panel(axes: Axes, paper: Paper, panel: str) -> None:
    curves = {series: paper.curve(series.run, panel) for series in paper.series}
    curves = {series: rows for series, rows in curves.items() if len(rows)}
    for series, rows in curves.items():
        drawing.paper_curve(axes, rows, series, faint=False, label=series.label)
    shown = pd.concat(curves.values())
    is_loss = bool((shown["value"] > 0).all())
    first, last = shown["fraction"].min(), shown["fraction"].max()
    begin = first if first > drawing.SETTLED["gap"] else 0.0  # forks are drawn from where they begin
    start = drawing.SETTLED["loss" if is_loss else "gap"]
    stated = paper.stated.get("y_range") if is_loss else None
    settled = drawing.settled_range(list(curves.values()), start=start)
    drawing.set_range(axes, tuple(stated) if stated else settled, None if is_loss else (0.0, 0.0))
    if not is_loss:
        axes.axhline(0, color="#000000", lw=0.8)
    axes.set_ylabel(paper.stated["axes"][panel])
    axes.set_title(f"the paper ({drawing.PAPER_NAME})" if len(curve_panels(paper)) == 1 else "the paper")
    horizon = paper.stated["horizon_trillions"] * 1e12
    drawing.horizon_axes(axes, horizon, start=begin, end=last, paper=True)
