"""The y-axes of pictures: spikes do not stretch them, curves stay on them, what leaves them is told; their labels."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import matplotlib.text
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from stated import paper_of

from paper_figures.__main__ import FOLDER, TEXT_COLUMNS, elements
from repro.analysis import drawing
from repro.analysis.readings import smooth
from repro.analysis.shown import ours_of, smoothing_points


def drawn(element: str, table: pd.DataFrame) -> Figure:
    module = __import__(f"paper_figures.{element}.figure", fromlist=["draw"])
    with matplotlib.rc_context(fname=FOLDER / "style.mplstyle"):
        return module.draw(table, paper_of(element))


def recorded(element: str) -> tuple[pd.DataFrame, Figure]:
    path = FOLDER / element / "recorded" / "proxy.csv"
    if not path.exists():
        pytest.skip(f"{element} has no recorded runs")
    table = pd.read_csv(path, dtype=TEXT_COLUMNS)
    return table, drawn(element, table)


def curve(values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"fraction": np.linspace(1 / len(values), 1, len(values)), "value": values})


def test_spikes_do_not_stretch_the_axis_and_what_lasts_does() -> None:
    values = np.full(300, -1.0)
    values[[90, 91, 150, 200]] = 6.0
    assert drawing.settled_range([curve(values)], start=0.25) == (-1.0, -1.0)
    values[200:210] = 2.0
    assert drawing.settled_range([curve(values)], start=0.25) == (-1.0, 2.0)


def test_of_few_points_each_counts() -> None:
    values = np.full(50, -1.0)
    values[30] = -4.0
    assert drawing.settled_range([curve(values)], start=0.25) == (-4.0, -1.0)


@pytest.mark.parametrize("element", ["fig8", "fig11", "fig14"])
def test_the_papers_spikes_do_not_stretch_the_axis_of_the_gaps(element: str) -> None:
    """It holds our gaps and nine tenths of the paper's, and hardly more."""
    table, figure = recorded(element)
    low, high = figure.axes[0].get_ylim()
    curves = pd.concat([paper_of(element).curve(series.run) for series in paper_of(element).series])
    ours = table[table["quantity"] == "gap"]
    settled, theirs = (rows[rows["fraction"] >= drawing.SETTLED["gap"]]["value"] for rows in (ours, curves))
    held = [0.0, settled.min(), settled.max(), *theirs.quantile([0.05, 0.95])]
    assert high - low < 1.25 * (max(held) - min(held))
    [note] = [t.get_text() for t in figure.findobj(matplotlib.text.Text) if "validation gap:" in t.get_text()]
    for end in (curves["value"].min(), curves["value"].max()):
        told = f"{end:+.3g} %" in " ".join(note.split()).partition("beyond the y-axis:")[2]
        assert told == (not low <= end <= high), end


def test_the_losses_of_figure_4_stay_on_their_axis_to_the_edge_of_the_panel() -> None:
    table, figure = recorded("fig4")
    axes = figure.axes[0]
    rows = ours_of(table, "12b_nvfp4", "loss")
    loss = smooth(rows["value"], smoothing_points(rows, (0.0, 0.7)))
    shown = (rows["fraction"] > 0.3) & (100 * rows["fraction"] <= axes.get_xlim()[1])
    low, high = axes.get_ylim()
    assert low < loss[shown].min() < loss[shown].max() < high


def long_labels(figure: Figure) -> list[str]:
    figure.canvas.draw()
    labels = [(axes, axes.yaxis.label) for axes in figure.axes if axes.axison]
    return [
        label.get_text()
        for axes, label in labels
        if label.get_window_extent().height > axes.bbox.height + 1  # a pixel
    ]


@pytest.mark.parametrize("element", elements())
def test_no_label_of_a_y_axis_runs_along_the_next_panel(element: str, made: Path) -> None:
    path = made / "elements" / element / "data.csv"
    assert long_labels(drawn(element, pd.read_csv(path, dtype=TEXT_COLUMNS))) == []
    if (FOLDER / element / "recorded" / "proxy.csv").exists():
        assert long_labels(recorded(element)[1]) == []


def test_a_long_label_is_found() -> None:
    figure = drawing.new_figure(4, 1)
    figure.subplots().set_ylabel("validation loss, difference to BF16 (%), of all runs of the tier")
    assert len(long_labels(figure)) == 1


def test_what_the_legend_of_figure_6_says_of_seeds_takes_no_room_from_its_panels(made: Path) -> None:
    """Up to two lines more of fine print."""
    table = pd.read_csv(made / "elements" / "fig6" / "data.csv", dtype=TEXT_COLUMNS)
    heights = []
    for rows in (table, table[table["role"] != "replica"]):
        figure = drawn("fig6", rows)
        figure.canvas.draw()
        heights.append(figure.axes[0].bbox.height / figure.dpi)
    assert heights[0] > heights[1] - 0.22
