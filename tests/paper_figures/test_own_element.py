"""An element that is not the paper's: no curves to compare with, runs that its table may lack."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from stated import paper_of
from synthetic_results import REPO

from paper_figures.__main__ import TEXT_COLUMNS, run
from repro.analysis.curve_figure import curve_figure


@pytest.mark.parametrize(("element", "quantity", "panels"), [("fig11", "gap", 1), ("fig9", "loss", 2)])
def test_without_curves_of_the_paper_ours_stand_alone(
    element: str, quantity: str, panels: int, made: Path
) -> None:
    table = pd.read_csv(made / "elements" / element / "data.csv", dtype=TEXT_COLUMNS)
    paper = paper_of(element)
    own = replace(paper, curves=paper.curves.iloc[:0])
    figure = curve_figure(table, own, quantity=quantity, with_gaps=quantity == "loss")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == panels, [axes.get_title() for axes in shown]
    words = " ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))
    assert "the paper (arXiv" not in words
    assert "in brackets" not in words


def test_a_series_that_data_does_not_read_is_told_before_it_is_drawn_as_not_recorded(
    made: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "elements" / "fig11"
    shutil.copytree(made / "elements" / "fig11", folder)
    table = pd.read_csv(folder / "data.csv", dtype=TEXT_COLUMNS)
    table[table["run"] != "1p2b_rht_dgrad"].to_csv(folder / "data.csv", index=False)
    with pytest.raises(
        ValueError, match=r"fig11/figure\.py: data\(\) gives no rows of 1p2b_rht_dgrad, a series"
    ):
        run("fig11", "draw", tmp_path, configs=REPO / "configs")


@pytest.mark.parametrize("step", ["data", "claims", "draw"])
def test_a_results_folder_that_is_none_is_told_and_not_made(step: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(ValueError, match=rf"{folder}: no results folder; `snakemake fig11` makes it"):
            run("fig11", step, folder, configs=REPO / "configs")
    assert not (tmp_path / "nowhere").exists()
