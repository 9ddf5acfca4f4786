"""What paper.yaml and a model file say of the paper's curves, held against the curves themselves (paper.csv)."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from stated import paper_of
from synthetic_results import REPO

from repro.analysis.paper import Paper

#: Points of a gap: a curve is read to +-0.01.
READING = 0.01


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


def tenths(gains: np.ndarray, grid: np.ndarray) -> pd.Series:
    """Mean gain over each tenth of a horizon of 1T tokens, by its start."""
    return pd.Series(gains).groupby(np.floor(10 * grid + 1e-9) / 10).mean()


def test_from_where_on_stochastic_rounding_helps_is_as_the_curves_have_it() -> None:
    fig8, fig9, fig10 = (paper_of(element) for element in ("fig8", "fig9", "fig10"))
    grid = np.arange(0.02, 0.997, 0.002)
    last, alone = (
        on(grid, fig8, "1p2b_last4_2d_rht_sr") - on(grid, fig8, "1p2b_last4_2d_rht"),
        gap(grid, fig10, "1p2b_sr_gradients", "1p2b_bf16") - gap(grid, fig9, "1p2b_last4", "1p2b_bf16"),
    )
    words = fig8.judge["C19"]["reach"]["because"]
    found = re.search(r"SR lies behind up to (.*)T, gains a few hundredths .* from about (\S+)T", words)
    assert found, words
    behind, ahead = (float(number) for number in found.groups())
    gains = tenths(last, grid)
    assert (gains[gains.index < behind] < -2 * READING).all()
    assert (gains[(gains.index >= behind) & (gains.index < ahead)].abs() < 2 * READING).all()
    assert gains[gains.index >= ahead].between(READING, 0.1).sum() == 4
    assert gains[0.9] > 0.1

    words = fig10.judge["C22"]["reach"]["because"]
    found = re.search(r"ahead of Figure 9's run without it only from about (\S+)T on", words)
    assert found, words
    gains = tenths(alone, grid)
    assert (gains[gains.index < float(found[1])] < 2 * READING).all()
    assert (gains[gains.index >= float(found[1])] > 2 * READING).all()

    words = (REPO / "configs" / "models" / "proxy" / "1p2b.yaml").read_text(encoding="utf-8")
    stated = f"at about {found[1]}T by itself and at about {ahead}T after the other techniques, where it lies behind"
    assert f"{stated} up to {behind}T" in " ".join(words.split())
