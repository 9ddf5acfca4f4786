"""Figure 3 (Section 3): accuracy of checkpoints along training. No claim of its own (Table 2 has them)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.analysis import drawing
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
    benchmarks, table = table[table["task"] != "mean"], table[table["task"] == "mean"]
    groups = list(dict.fromkeys(table["group"]))
    panels = paper.stated["panels"]
    columns = max(len(groups), len(panels) + 1)
    figure = drawing.new_figure(1.75 * columns, 4.9)
    grid = figure.subplots(2, columns, squeeze=False)
    horizon = float(table["horizon_tokens"].iloc[0])
    for axes, group in zip(grid[0], groups, strict=False):
        _ours(axes, table[table["group"] == group], paper)
        chance = 100 * float(table.loc[table["group"] == group, "chance"].iloc[0])
        axes.axhline(chance, color="#888888", ls=":", lw=0.9, label="chance")
        axes.set_title(group)
        drawing.horizon_axes(axes, horizon, end=1.04)
        axes.set_xlabel("")
    for axes, (panel, name) in zip(grid[1], panels.items(), strict=False):
        ours = benchmarks[benchmarks["task"] == name]
        for series in paper.series:
            drawing.paper_curve(axes, paper.curve(series.run, panel), series, faint=not ours.empty)
        _ours(axes, ours, paper)
        axes.set_title(f"paper: {name}" if ours.empty else f"{name}\n(the paper faint)")
        axes.set_xlim(0, 104)
        axes.set_xlabel("per cent of the horizon")
    for axes in [*grid[0][len(groups) :], *grid[1][len(panels) :]]:
        axes.axis("off")
    grid[0][0].set_ylabel("accuracy (%), this tier")
    grid[1][0].set_ylabel("accuracy (%), the paper")
    grid[1][-1].legend(*grid[0][0].get_legend_handles_labels(), loc="center")
    items = table.groupby("group")["num_items"].first()
    notes = ["bars: one standard error; the two runs are drawn 1.2 % of the horizon apart", "items: " + ", ".join(
        f"{group} {number}" for group, number in items.items())]  # fmt: skip
    return drawing.finish(figure, paper.title, drawing.provenance(table, *notes))


def _ours(axes: Axes, rows: pd.DataFrame, paper: Paper) -> None:
    """One group or benchmark of both runs, with bars."""
    for offset, series in zip((-0.6, 0.6), paper.series, strict=True):
        run = rows[rows["run"] == series.run].sort_values("fraction")
        if not run.empty:
            axes.errorbar(
                100 * run["fraction"] + offset, 100 * run["value"], yerr=100 * run["stderr"], marker="o", ms=3,
                lw=1.3, elinewidth=0.7, capsize=1.5, color=drawing.PALETTE[series.color], label=series.label,
            )  # fmt: skip


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    """The claims about accuracy are about the end and belong to Table 2."""
    return []
