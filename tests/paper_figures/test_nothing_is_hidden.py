"""Every picture, of invented results with several seeds and of the recorded ones: no text, legend or label of an
excursion lies on a curve, on another text or beyond the edge; and what belongs together stands together."""

from __future__ import annotations

import math
import re
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import yaml
from drawn_text import all_axes, collisions, drawn_texts
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from synthetic_results import REPO

from paper_figures.__main__ import FOLDER, TEXT_COLUMNS, elements, is_empty
from repro.analysis import drawing, seed_marks
from repro.analysis.curve_panels import beyond_axis
from repro.analysis.empty_figure import empty_figure
from repro.analysis.noise import Noise
from repro.analysis.paper import load_paper
from repro.analysis.places import EXCURSION

CONFIGS = REPO / "configs"
RECORDED = sorted(FOLDER.glob("*/recorded/*.csv"))


def drawn(element: str, path: Path) -> Figure:
    module = __import__(f"paper_figures.{element}.figure", fromlist=["draw"])
    table, paper = (
        pd.read_csv(path, dtype=TEXT_COLUMNS),
        load_paper(FOLDER / element, CONFIGS / "claims.yaml"),
    )
    return empty_figure(table, paper) if is_empty(table) else module.draw(table, paper)


@pytest.fixture(autouse=True)
def style():
    with matplotlib.rc_context(fname=FOLDER / "style.mplstyle"):
        yield


@pytest.mark.parametrize(
    "path", RECORDED, ids=[f"{path.parent.parent.name}-{path.stem}" for path in RECORDED]
)
def test_recorded_pictures_hide_nothing(path: Path) -> None:
    assert collisions(drawn(path.parent.parent.name, path)) == []


@pytest.mark.parametrize("element", elements())
def test_pictures_of_several_seeds_hide_nothing(element: str, made: Path) -> None:
    assert collisions(drawn(element, made / "elements" / element / "data.csv")) == []


def test_what_is_hidden_is_found() -> None:
    figure = drawing.new_figure(3, 3)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], label="a curve")
    axes.text(0.5, 0.5, "on the curve", ha="center", va="center")
    figure.text(0.9, 0.1, "far beyond the edge of the figure")
    axes.legend(loc="center")
    words = "\n".join(collisions(figure))
    for found in (
        "'on the curve' lies on a curve",
        "'a legend' lies on a curve",
        "'far beyond the edge of the figure' leaves the figure",
        "'on the curve' lies on 'a curve'",
    ):
        assert found in words


def test_the_label_of_an_excursion_stands_beside_the_curves_at_its_edge() -> None:
    """A narrow dip, narrower than its label, beside which there is room."""
    fraction = np.linspace(0.02, 1, 50)
    value = np.where(abs(fraction - 0.12) < 0.03, -9.0, -0.4 - 0.2 * np.sin(40 * fraction))
    rows = pd.DataFrame({"fraction": fraction, "value": value, "text": "validation"})
    paper = load_paper(FOLDER / "fig6", CONFIGS / "claims.yaml")
    figure = drawing.new_figure(3, 3)
    axes = figure.subplots()
    drawing.curve(axes, rows.assign(status="completed"), paper.series[0], label="a curve")
    drawing.set_range(axes, (-1.2, 0.0))
    drawing.horizon_axes(axes, 1e9)
    ours = {series.run: rows if series is paper.series[0] else rows.head(0) for series in paper.series}
    assert beyond_axis(axes, paper, ours).endswith("NVFP4 -9 % at 10 % of the horizon")
    [label] = [text for text in axes.texts if text.get_gid() == EXCURSION]
    assert label.get_text() == "to -9 %"
    figure.canvas.draw()
    assert any("'to -9 %' lies on a curve" in words for words in collisions(figure)), "no need to move it"
    drawing.finish(figure, "a title", [])
    assert collisions(figure) == []
    bottom = label.get_window_extent().y0 - axes.bbox.y0
    assert 0 <= bottom < label.get_window_extent().height, "not at its edge"


def test_the_label_of_an_excursion_stays_near_its_triangle_where_curves_crowd_the_edge() -> None:
    """Other seeds wander along the edge, left and right of a dip of which all places are taken."""
    fraction = np.linspace(0.02, 1, 50)
    paper = load_paper(FOLDER / "fig6", CONFIGS / "claims.yaml")
    draws = np.random.default_rng(0)
    figure = drawing.new_figure(4, 3)
    axes = figure.subplots()
    seeds = []
    for number in range(6):
        dip = np.where(abs(fraction - 0.2) < 0.03, -9.0, -0.4)
        along = np.where(fraction < 0.7, -0.75 - 0.09 * number + 0.1 * draws.standard_normal(50), -0.4)
        value = along if number else dip
        rows = pd.DataFrame({"fraction": fraction, "value": value, "text": "validation", "replica": number})
        seeds.append(rows.assign(status="completed"))
        drawing.curve(axes, seeds[-1], paper.series[0], other_seed=number > 0)
    drawing.set_range(axes, (-1.2, 0.0))
    drawing.horizon_axes(axes, 1e9)
    every = pd.concat(seeds, ignore_index=True)
    assert beyond_axis(axes, paper, {"8b_nvfp4": every, "8b_mxfp4": every.head(0)})
    drawing.finish(figure, "a title", [])
    [label] = [text for text in axes.texts if text.get_gid() == EXCURSION]
    [triangle] = [line for line in axes.lines if line.get_marker() == "v"]
    place = axes.transData.transform(triangle.get_xydata()[0])
    box = label.get_window_extent()
    assert np.hypot(box.x0 + box.width / 2 - place[0], box.y0 - place[1]) < 0.6 * figure.dpi, "inches away"
    assert label.get_path_effects(), "no rim, where it lies on curves"


def test_a_legend_wider_than_its_figure_takes_fewer_columns() -> None:
    figure = drawing.new_figure(4, 3)
    axes = figure.subplots()
    for number in range(4):
        axes.plot([0, 1], [0, number], label=f"a run of many words, {number} of them")
    handles = axes.get_legend_handles_labels()[0]
    assert figure.legend(handles=handles, ncols=3).get_window_extent().width > figure.bbox.width
    figure.legends.clear()
    legend = drawing.legend_below(figure, axes, columns=3)
    assert figure.legends == [legend]
    box = legend.get_window_extent()
    assert box.width <= figure.bbox.width
    drawing.make_room(figure, legend)
    assert figure.get_figheight() == pytest.approx(3 + box.height / figure.dpi)


@pytest.mark.parametrize("element", ["fig2", "fig4", "fig6", "fig8", "fig12", "claims_text"])
def test_the_seed_noise_stands_beside_the_axes_and_hides_nothing(element: str, made: Path) -> None:
    figure = drawn(element, made / "elements" / element / "data.csv")
    texts = [text.get_window_extent() for text in drawn_texts(figure)]
    marked = [
        axes for axes in all_axes(figure) if any(line.get_gid() == seed_marks.NOISE for line in axes.lines)
    ]
    assert marked
    for axes in marked:
        parts = [line for line in axes.lines if line.get_gid() == seed_marks.NOISE]
        box = Bbox.union([line.get_window_extent() for line in parts])
        assert box.x0 > axes.bbox.x1, "it lies on the curves"
        assert axes.bbox.y0 - 4 < box.y0 < box.y1 < axes.bbox.y1 + 4
        assert figure.bbox.x1 > box.x1
        assert not any(box.overlaps(text) for text in texts)
        assert not any(
            box.overlaps(other.bbox) for other in figure.axes if other is not axes and axes in figure.axes
        )


def test_the_insets_of_figure_4_have_one_range_where_they_can(made: Path, tmp_path: Path) -> None:
    path = made / "elements" / "fig4" / "data.csv"
    ours, papers = (axes.get_ylim() for axes in all_axes(drawn("fig4", path))[2:4])
    assert ours == papers
    assert papers[0] <= -2.0
    table = pd.read_csv(path, dtype=TEXT_COLUMNS)
    table.loc[table["quantity"] == "gap", "value"] *= 100
    table.to_csv(tmp_path / "data.csv", index=False)
    ours, papers = (axes.get_ylim() for axes in all_axes(drawn("fig4", tmp_path / "data.csv"))[2:4])
    assert ours[0] < -50
    assert papers == (-2.0, 0.1)


@pytest.mark.parametrize(
    ("limit", "ends"), [(0.2, ("_", "_")), (1.0, ("_", "beyond")), (9.0, ("beyond", "beyond"))]
)
def test_the_bracket_of_the_noise_is_as_long_as_the_noise_or_says_that_it_goes_on(limit, ends) -> None:
    axes = drawing.new_figure(3, 3).subplots()
    axes.set_ylim(-3, 0.5)
    noise = Noise(sd=math.nan, dof=0, num_runs=0, flat=limit)
    [handle] = seed_marks.noise_bracket(axes, noise)
    line, *tips = [line for line in axes.lines if line.get_gid() == seed_marks.NOISE]
    assert list(line.get_ydata()) == pytest.approx([max(-limit, -3), min(limit, 0.5)])
    assert tuple("_" if tip.get_marker() == "_" else "beyond" for tip in tips) == ends
    assert ("beyond the axis" in handle.get_label()) == ("beyond" in ends)
    assert f"±{limit:.2g}" in handle.get_label()
    assert seed_marks.noise_bracket(axes, None) == []


@pytest.mark.parametrize(("dof", "says_so"), [(1, True), (2, False)])
def test_the_bracket_says_that_two_seeds_alone_may_agree_by_chance(dof: int, says_so: bool) -> None:
    axes = drawing.new_figure(3, 3).subplots()
    [handle] = seed_marks.noise_bracket(axes, Noise(sd=0.0068, dof=dof, num_runs=dof + 1))
    words = " ".join(handle.get_label().split())
    assert ("from 2 seeds only, which may agree by chance" in words) == says_so
    assert (
        f"±{Noise(0.0068, dof, dof + 1).limit(1):.2g} points; a gap inside can't be told from none" in words
    )


def test_no_line_of_the_footnotes_breaks_between_a_number_and_its_unit() -> None:
    line = "runs a (3 seeds) and b (2 seeds): sd 0.6 points, 2 degrees of freedom, in BF16 -1.61 %, as ours"
    for width in range(20, len(line)):
        figure = drawing.new_figure((width + 0.5) / 22.5, 2)
        drawing.finish(figure, "", [line])
        pieces = figure.texts[-1].get_text().split("\n")
        assert " ".join(pieces) == line
        assert not any(re.search(r"(^|[\s(])[-+]?[\d.]+$|\bsd$", piece) for piece in pieces), pieces


def test_the_axis_widens_for_a_curve_that_leaves_it_by_little() -> None:
    paper = load_paper(FOLDER / "fig6", CONFIGS / "claims.yaml")
    rows = pd.DataFrame(
        {"fraction": [0.1, 0.4, 0.7, 1.0], "value": [0.3, -1.2, -1.1, -1.4], "text": "validation"}
    )
    ours = {"8b_nvfp4": rows, "8b_mxfp4": rows.head(0)}
    axes = drawing.new_figure(3, 3).subplots()
    axes.set_ylim(-2, 0.15)
    assert beyond_axis(axes, paper, ours) == ""
    assert axes.get_ylim()[0] == -2
    assert 0.3 < axes.get_ylim()[1] < 0.5
    axes.set_ylim(-2, 0.05)  # farther than a tenth of the axis
    assert beyond_axis(axes, paper, ours).endswith("NVFP4 +0.3 % at 10 % of the horizon")
    assert axes.get_ylim()[1] == 0.05
    assert [text.get_text() for text in axes.texts] == ["to +0.3 %"]


def test_the_gaps_of_figure_2_have_one_range_where_they_can(made: Path, tmp_path: Path) -> None:
    path = made / "elements" / "fig2" / "data.csv"
    ours, papers = (axes.get_ylim() for axes in drawn("fig2", path).axes[2:4])
    assert ours == papers
    assert papers[1] > 0
    table = pd.read_csv(path, dtype=TEXT_COLUMNS)
    table.loc[table["quantity"] == "gap", "value"] *= 100
    table.to_csv(tmp_path / "data.csv", index=False)
    ours, papers = (axes.get_ylim() for axes in drawn("fig2", tmp_path / "data.csv").axes[2:4])
    assert ours != papers


def test_each_benchmark_of_figure_3_stands_below_its_group(made: Path) -> None:
    paper = load_paper(FOLDER / "fig3", CONFIGS / "claims.yaml")
    figure = drawn("fig3", made / "elements" / "fig3" / "data.csv")
    figure.canvas.draw()
    places = {axes.get_title(loc="left"): axes.get_position() for axes in figure.axes}
    groups = yaml.safe_load((FOLDER / "table2" / "paper.yaml").read_text())["paper"]["groups"]
    for panel, name in paper.stated["panels"].items():
        group = paper.stated["groups"][panel]
        below, above = places[name], places[group]
        assert above.x0 - 0.01 < below.x0 < below.x1 < above.x1 + 0.01, name
        assert below.y1 < above.y0
        if name != "MATH 500":  # Table 2 has MATH instead
            assert name in groups[group.capitalize()], name
    empty = [axes for axes in figure.axes if not axes.axison]
    assert len(empty) == 2, "multilingual and commonsense"


@pytest.mark.parametrize("element", ["fig9", "fig10"])
def test_losses_stand_beside_their_gaps_where_there_are_any(element: str, made: Path, tmp_path: Path) -> None:
    path = made / "elements" / element / "data.csv"
    table = pd.read_csv(path, dtype=TEXT_COLUMNS)
    gaps, losses, papers = drawn(element, path).axes[:3]
    runs = list(dict.fromkeys(table.loc[table["quantity"] == "gap", "run"]))
    drawn_gaps = {tuple(line.get_ydata()) for line in gaps.lines}
    one = table[(table["run"] == runs[0]) & (table["quantity"] == "gap")].sort_values("tokens")
    assert any(np.allclose(one["value"], gap) for gap in drawn_gaps if len(gap) == len(one)), runs[0]
    labels = [" ".join(axes.get_ylabel().split()) for axes in (gaps, losses, papers)]
    assert labels == [
        "validation loss, difference to BF16 (%)",
        "validation loss (nats a token)",
        "validation loss (nats a token)",
    ]
    boxes = [axes.get_position() for axes in (gaps, losses, papers)]
    assert boxes[1].x0 == boxes[2].x0 > boxes[0].x1, "ours do not stand over the paper's"
    assert boxes[0].width * boxes[0].height > 2 * boxes[1].width * boxes[1].height
    alone = tmp_path / "data.csv"
    table[table["role"] == "baseline"].to_csv(alone, index=False)  # no other run is recorded: no gap to draw
    assert len([axes for axes in drawn(element, alone).axes if axes.get_title(loc="left")]) == 2
