"""Figure 3 (Section 3): accuracy of checkpoints along training. No claim of its own (Table 2 has them)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from repro.analysis import drawing, palette, source_lines
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.verdicts import Verdict

RUNS = ("12b_fp8", "12b_nvfp4")
#: The benchmarks of the paper's four panels, by the names of configs/evals/paper.yaml.
BENCHMARKS = ("MMLU-Pro 5-shot", "MMLU", "MATH 500", "MBPP+")


def data(results: Results) -> pd.DataFrame:
    """Accuracy of each group and of each of BENCHMARKS at each checkpoint, with standard error and chance.

    Fractions of 1; a group's rows have task "mean". A tier without the benchmarks has the groups alone.
    """
    tables = []
    for name in RUNS:
        scores = results.evaluations(name)
        means = scores[scores["task"] == "mean"]
        if means.empty:
            raise ValueError(
                f"{results.folder / 'evaluations' / f'{name}.csv'}: no rows of group means (task mean)"
            )
        shown = scores[scores["task"].isin(("mean", *BENCHMARKS))]
        tables.append(shown.assign(role="run", **results.run(name).meta()))
    return pd.concat(tables, ignore_index=True)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    """Groups above; under each the paper's benchmarks of it, side by side where it has several."""
    benchmarks, table = table[table["task"] != "mean"], table[table["task"] == "mean"]
    horizon, tier = float(table["horizon_tokens"].iloc[0]), table["tier"].iloc[0]
    panels, groups = paper.stated["panels"], list(dict.fromkeys(table["group"]))
    below = {group: [panel for panel in panels if paper.stated["groups"][panel] == group] for group in groups}
    widths = [max(1, len(below[group])) for group in groups]
    figure = drawing.new_figure(1.75 * sum(widths), 5.3)
    grid = figure.add_gridspec(2, sum(widths))
    column = 0
    for group, width in zip(groups, widths, strict=True):
        top = figure.add_subplot(grid[0, column : column + width])
        _group(top, table[table["group"] == group], paper, horizon)
        parts = [figure.add_subplot(grid[1, column + place]) for place in range(width)]
        for panel, part in zip(below[group], parts, strict=False):
            _benchmark(part, benchmarks[benchmarks["task"] == panels[panel]], paper, panel)
        if not below[group]:
            top.set_xlabel("per cent of the horizon")
            _say_nothing(parts[0])
        if not column:
            top.set_ylabel(f"accuracy (%), {tier} tier")
            parts[0].set_ylabel("accuracy (%), the paper")
            first = top
        column += width
    chance = Line2D([], [], color="#888888", ls=":", lw=0.9, label="chance")
    drawing.legend_below(figure, first, [chance], columns=3)
    items = table.groupby("group")["num_items"].first()
    notes = [
        "above: this tier's own questions; below: the paper's benchmarks of the same group, other questions",
        "bars: one standard error; the two runs are drawn 1.2 % of the horizon apart",
        "questions: " + ", ".join(f"{group} {number}" for group, number in items.items()),
    ]
    return drawing.finish(
        figure, paper.title, source_lines.provenance(table, *notes), source_lines.stand_in(table)
    )


def _group(axes: Axes, rows: pd.DataFrame, paper: Paper, horizon: float) -> None:
    """One of this tier's groups, and what guessing would score."""
    _ours(axes, rows, paper)
    axes.axhline(100 * float(rows["chance"].iloc[0]), color="#888888", ls=":", lw=0.9)
    axes.set_title(rows["group"].iloc[0])
    drawing.horizon_axes(axes, horizon, end=1.04)
    axes.set_xlabel("")


def _benchmark(axes: Axes, ours: pd.DataFrame, paper: Paper, panel: str) -> None:
    """One of the paper's benchmarks, faint where this tier evaluates it too."""
    for series in paper.series:
        drawing.paper_curve(axes, paper.curve(series.run, panel), series, faint=not ours.empty)
    _ours(axes, ours, paper)
    name = paper.stated["panels"][panel]
    axes.set_title(name if ours.empty else f"{name}\n(the paper faint)")
    axes.set_xlim(0, 104)
    axes.set_xlabel("per cent of the horizon")


def _say_nothing(axes: Axes) -> None:
    axes.axis("off")
    words = "the paper draws\nno benchmark\nof this group"
    axes.text(
        0.5, 0.5, words, ha="center", va="center", fontsize=7, color="#555555", transform=axes.transAxes
    )


def _ours(axes: Axes, rows: pd.DataFrame, paper: Paper) -> None:
    """One group or benchmark of both runs, with bars."""
    for offset, series in zip((-0.6, 0.6), paper.series, strict=True):
        run = rows[rows["run"] == series.run].sort_values("fraction")
        if not run.empty:
            axes.errorbar(
                100 * run["fraction"] + offset, 100 * run["value"], yerr=100 * run["stderr"], ms=3, lw=1.3,
                elinewidth=0.7, capsize=1.5, marker=palette.MARKERS[series.color],
                color=palette.PALETTE[series.color], label=series.label,
            )  # fmt: skip


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    """The claims about accuracy are about the end and belong to Table 2."""
    return []
