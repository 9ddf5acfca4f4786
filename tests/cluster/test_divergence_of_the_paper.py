"""The paper tier's rule of divergence on the paper's own curves: Figures 9 and 10, with claims C20 and C22."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from repro.portable.divergence import DivergenceWatch

#: Steps that one loss stands for; the curves have a point every 500.
STRIDE = 10
FIGURES = {"C20": "fig9", "C22": "fig10"}


def diverged_at(section, tokens, losses, step_tokens):
    """Trillions of tokens, or None; the curve's points joined by lines."""
    watch = DivergenceWatch({**section, "window_steps": section["window_steps"] // STRIDE})
    steps = np.arange(tokens[0], tokens[-1], STRIDE * step_tokens / 1e12)
    for now, loss in zip(steps, np.interp(steps, tokens, losses), strict=True):
        if watch.reason(float(loss), 1.0, 0):
            return now
    return None


@pytest.mark.parametrize("claim", FIGURES)
def test_what_the_paper_calls_diverged_counts_as_diverged_and_nothing_else(paper, segment, claim):
    """At most a tenth of the horizon from where the paper's curve leaves: what trains on is GPU-hours for nothing."""
    folder = Path("paper_figures") / FIGURES[claim]
    arms, finite = (
        yaml.safe_load((folder / "paper.yaml").read_text())["judge"][claim][k] for k in ("arms", "finite")
    )
    groups = yaml.safe_load(Path("configs/claims.yaml").read_text()).values()
    drawn = next(group[claim] for group in groups if claim in group)["drawn_divergence_T"]
    curves = pd.read_csv(folder / "paper.csv")
    for arm, ends in finite.items():
        frozen = segment(arms[arm])
        curve = curves[curves["run"] == arms[arm]]
        tokens, losses = (curve[column].to_numpy() for column in ("tokens_trillions", "value"))
        found = diverged_at(frozen.content["divergence"], tokens, losses, frozen.step_tokens)
        assert (found is None) == ends, f"{arm}: {found}"
        assert ends or found == pytest.approx(drawn[arm], abs=0.1), arm
