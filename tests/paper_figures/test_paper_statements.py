"""What paper.yaml says of the paper's curves, held against the curves themselves (paper.csv)."""

from __future__ import annotations

import numpy as np
from synthetic_results import REPO

from paper_figures.__main__ import FOLDER
from repro.analysis.paper import Paper, load_paper

#: Points of a gap: a curve is read to +-0.01.
READING = 0.01


def paper_of(element: str) -> Paper:
    return load_paper(FOLDER / element, REPO / "configs" / "claims.yaml")


def on(grid: np.ndarray, paper: Paper, run: str, panel: str = "main") -> np.ndarray:
    """The paper's curve of a run at `grid`, trillions of tokens."""
    rows = paper.curve(run, panel).sort_values("tokens_trillions")
    return np.interp(grid, rows["tokens_trillions"], rows["value"])


def gap(grid: np.ndarray, paper: Paper, run: str, baseline: str) -> np.ndarray:
    """(baseline - run) / baseline in per cent, of a figure that draws losses."""
    base = on(grid, paper, baseline)
    return 100 * (base - on(grid, paper, run)) / base


def test_figure_13_draws_training_losses_like_figure_12() -> None:
    """The run that goes on is the same curve in both; relative to FP8 its validation loss (Figure 2) is another."""
    fig2, fig12, fig13 = (paper_of(element) for element in ("fig2", "fig12", "fig13"))
    grid = np.arange(3.41, 3.99, 0.002)
    here = on(grid, fig13, "12b_nvfp4").mean()
    assert abs(here - on(grid, fig12, "12b_nvfp4").mean()) < READING
    validation = gap(grid, fig2, "12b_nvfp4", "12b_fp8").mean()
    assert here - validation > 5 * READING
    assert fig13.stated["axes"]["main"] == fig12.stated["axes"]["main"]
    assert fig12.stated["axes"]["main"].startswith("training loss")
