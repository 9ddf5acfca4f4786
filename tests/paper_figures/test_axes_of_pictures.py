"""The y-axes of pictures: spikes do not stretch them, curves stay on them, and what leaves them is told."""

from __future__ import annotations

import matplotlib
import matplotlib.text
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from stated import paper_of

from paper_figures.__main__ import FOLDER, TEXT_COLUMNS
from repro.analysis import drawing
from repro.analysis.readings import smooth
from repro.analysis.shown import ours_of, smoothing_points


def recorded(element: str) -> tuple[pd.DataFrame, Figure]:
    path = FOLDER / element / "recorded" / "proxy.csv"
    if not path.exists():
        pytest.skip(f"{element} has no recorded runs")
    table = pd.read_csv(path, dtype=TEXT_COLUMNS)
    module = __import__(f"paper_figures.{element}.figure", fromlist=["draw"])
    with matplotlib.rc_context(fname=FOLDER / "style.mplstyle"):
        return table, module.draw(table, paper_of(element))


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
