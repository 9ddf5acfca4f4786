"""Elements of a folder in which most runs are not recorded: each is named once, and nothing is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import matplotlib.text
import pandas as pd
import pytest
from matplotlib.figure import Figure
from stated import paper_of
from synthetic_results import REPO

from paper_figures.__main__ import FOLDER, TEXT_COLUMNS, elements, run
from repro.analysis import drawing
from repro.analysis.curve_panels import beyond_axis
from repro.analysis.empty_figure import curve_panels, empty_figure

CONFIGS = REPO / "configs"


def recorded_folder(parent: Path, written: Path, *runs: str) -> Path:
    """The folder of records that holds these runs alone, with neither evaluations nor mechanisms."""
    folder = parent / "tiny"
    folder.mkdir()
    (folder / "runs").symlink_to(written / "runs")
    segments = [f"{run}/{path.name}" for run in runs for path in (written / "runs" / run).iterdir()]
    mark = {"tier": "tiny", "recorded": segments, "stale": {}}
    (folder / "recorded.json").write_text(json.dumps(mark))
    return folder


@pytest.fixture(scope="module")
def partly(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the 8B model."""
    return recorded_folder(tmp_path_factory.mktemp("partly"), written, "8b_bf16", "8b_nvfp4")


def drawn(element: str, folder: Path) -> tuple[Figure, str]:
    """The figure of an element, and all its words."""
    [path] = run(element, "data", folder, configs=CONFIGS)
    module = __import__(f"paper_figures.{element}.figure", fromlist=["draw"])
    with matplotlib.rc_context(fname=FOLDER / "style.mplstyle"):
        figure = module.draw(pd.read_csv(path, dtype=TEXT_COLUMNS), paper_of(element))
    return figure, "\n".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def reasons(element: str, folder: Path) -> list[str]:
    run(element, "data", folder, configs=CONFIGS)
    [path] = run(element, "claims", folder, configs=CONFIGS)
    return [verdict["reason"] for verdict in json.loads(path.read_text())]


def test_missing_runs_are_named_once_and_alone(partly: Path) -> None:
    assert set(reasons("table2", partly)) == {"not recorded: 12b_fp8, 12b_nvfp4"}
    assert reasons("mechanisms", partly) == ["not recorded: 12b_nvfp4, 1p2b_last4"]
    for reason in reasons("fig14", partly):  # judged in parts, each of which lacks runs
        names = reason.removeprefix("not recorded: ").split(", ")
        assert len(names) == len(set(names)) > 3, reason


def test_what_a_recorded_run_lacks_is_said(written: Path, tmp_path: Path) -> None:
    folder = recorded_folder(tmp_path, written, "1p2b_last4")
    assert reasons("mechanisms", folder) == ["not recorded: 12b_nvfp4, 1p2b_last4 (its mechanisms)"]


@pytest.mark.parametrize(
    ("there", "lost", "named"),
    [
        ("12b_nvfp4", "1p2b_last4", "1.2B model, last 4 blocks in BF16: not recorded"),
        ("1p2b_last4", "12b_nvfp4", "12B model, full method: not recorded"),
    ],
)
def test_mechanisms_are_drawn_of_the_run_that_is_measured(
    there: str, lost: str, named: str, written: Path, tmp_path: Path
) -> None:
    folder = recorded_folder(tmp_path, written, there)
    (folder / "mechanisms").mkdir()
    name = f"mechanisms/{there}.csv"
    (folder / name).symlink_to(written / name)
    figure, words = drawn("mechanisms", folder)
    assert f"not recorded: {lost}" in words
    assert named in words
    curves = [len(line.get_xdata()) for axes in figure.axes for line in axes.lines]
    assert max(curves) == {"12b_nvfp4": 16, "1p2b_last4": 10}[there], "not a point a block"
    waits = [reason.startswith("not recorded") for reason in reasons("mechanisms", folder)]
    assert waits == [there == "12b_nvfp4"], "C21 is about the 1.2B model"
    assert {path.name for path in run("mechanisms", "draw", folder, configs=CONFIGS)} >= {"figure.png"}


def test_figure_5_says_that_precisions_agree_only_where_they_were_compared(partly: Path, made: Path) -> None:
    agrees = "recorded precision of every layer agrees"
    assert agrees in drawn("fig5", made)[1]
    words = drawn("fig5", partly)[1]
    assert agrees not in words
    assert "12b_nvfp4 is not recorded" in words


def test_figure_6_names_the_papers_curve_of_a_missing_run_and_tells_missing_from_too_short(
    partly: Path,
) -> None:
    figure, words = drawn("fig6", partly)
    [legend] = figure.legends
    assert any("MXFP4  not recorded (-2.5" in text.get_text() for text in legend.get_texts())
    assert "no MXFP4 run is recorded" in words
    assert "no MXFP4 run here reaches" not in words
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert len(set(titles)) == len(titles)


def test_a_figure_without_data_says_so_beside_the_papers_curves(partly: Path) -> None:
    for element, panels, runs in (
        ("fig4", 2, "12b_without_rht"),
        ("fig8", 1, "1p2b_last4_2d"),
        ("table2", 0, "12b_fp8"),
    ):
        [path] = run(element, "data", partly, configs=CONFIGS)
        paper = paper_of(element)
        with matplotlib.rc_context(fname=FOLDER / "style.mplstyle"):
            words, *axes = empty_figure(pd.read_csv(path, dtype=TEXT_COLUMNS), paper).axes
        [said] = words.texts
        told = " ".join(said.get_text().split())
        start = "not all that it needs" if element == "table2" else "no run of it"
        assert told.startswith(f"tiny tier: {start} is recorded not recorded: ")
        assert runs in told
        assert len(axes) == panels
        drawn = [line for part in axes for line in part.lines if line.get_label() in paper.labels.values()]
        assert sorted(len(line.get_xdata()) for line in drawn) == sorted(
            paper.curves.groupby(["panel", "run"]).size()
        ), "every curve of the paper once, and no other"
        assert run(element, "draw", partly, configs=CONFIGS)[0].is_file()


@pytest.mark.parametrize(
    ("runs", "waiting"),
    [
        (("12b_fp8", "12b_nvfp4"), "1p2b_bf16, 1p2b_last4, 1p2b_base_all, 1p2b_sr_all"),
        (("1p2b_bf16", "1p2b_base_all"), "12b_fp8, 12b_nvfp4, 12b_sr_dgrad_only, 12b_sr_wgrad_only"),
    ],
)
def test_of_two_models_in_one_element_one_may_be_recorded_first(
    runs, waiting, written: Path, tmp_path: Path
) -> None:
    words = " ".join(drawn("claims_text", recorded_folder(tmp_path, written, *runs))[1].split())
    assert f"not recorded: {waiting}" in words


@pytest.mark.parametrize(
    ("element", "runs", "waiting"),
    [("fig11", ["1p2b_bf16"], "1p2b_last4, 1p2b_rht_wgrad"), ("fig2", ["12b_fp8"], "12b_nvfp4")],
)
def test_a_baseline_alone_has_no_gap_to_draw(element, runs, waiting, written: Path, tmp_path: Path) -> None:
    figure, words = drawn(element, recorded_folder(tmp_path, written, *runs))
    said = f"tiny tier: no run of it but the baseline is recorded not recorded: {waiting}"
    assert said in " ".join(words.split())
    assert "nan" not in words
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert not axes.axison or high - low > 0.1, "an axis around nothing"


def test_forks_that_are_not_recorded_are_read_where_the_papers_end(written: Path, tmp_path: Path) -> None:
    _, words = drawn("fig4", recorded_folder(tmp_path, written, "12b_fp8", "12b_nvfp4"))
    assert "gap to FP8 at 40 %" in words


def test_figure_6_without_nvfp4_names_it(written: Path, tmp_path: Path) -> None:
    _, words = drawn("fig6", recorded_folder(tmp_path, written, "8b_bf16", "8b_mxfp4", "8b_mxfp4_1p25x"))
    assert "NVFP4's run is not recorded, so the budget" in words


def test_a_replica_waits_for_the_baseline_of_its_seed(written: Path, tmp_path: Path) -> None:
    runs = ["8b_bf16", "8b_nvfp4", "8b_nvfp4_seed2"]
    for number, more in enumerate(([], ["8b_bf16_seed2"])):
        parent = tmp_path / str(number)
        parent.mkdir()
        [path] = run("fig6", "data", recorded_folder(parent, written, *runs, *more), configs=CONFIGS)
        table = pd.read_csv(path, dtype=TEXT_COLUMNS)
        replicas = table[(table["role"] == "replica") & (table["quantity"] == "gap")]
        assert set(replicas["run"]) == ({"8b_nvfp4_seed2"} if more else set())
        assert replicas["paired"].all()


def test_every_panel_of_the_paper_says_what_it_measures() -> None:
    for element in elements():
        paper = paper_of(element)
        assert set(paper.stated.get("axes", {})) == set(curve_panels(paper)), element


def test_a_transient_beyond_the_axis_is_noted_with_its_depth_and_place() -> None:
    paper = paper_of("fig6")
    rows = pd.DataFrame(
        {"fraction": [0.1, 0.4, 0.7, 1.0], "value": [-6.0, -1.2, -1.1, -1.4], "text": "validation"}
    )
    ours = {"8b_nvfp4": rows, "8b_mxfp4": rows.head(0)}
    axes = drawing.new_figure(3, 3).subplots()
    drawing.set_range(axes, drawing.settled_range([rows], start=drawing.SETTLED["gap"]), (0.0, 0.0))
    assert axes.get_ylim()[0] > -2
    assert beyond_axis(axes, paper, ours).endswith("NVFP4 -6 % at 10 % of the horizon")
    assert [text.get_text() for text in axes.texts] == ["to -6 %"]
    axes.set_ylim(-7, 1)
    assert beyond_axis(axes, paper, ours) == ""
