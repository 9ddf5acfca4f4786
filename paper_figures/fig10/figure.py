"""Figure 10 (Appendix E.3): stochastic rounding on one kind of tensor at a time, 1.2B transformer. Claim C22."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from repro.analysis import rules
from repro.analysis.arms import judge_event, judge_order
from repro.analysis.curve_figure import curve_figure
from repro.analysis.curves import curve_table
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.verdicts import Verdict

BASELINE = "1p2b_bf16"
RUNS = ("1p2b_last4", "1p2b_sr_gradients", "1p2b_sr_backward", "1p2b_sr_activations", "1p2b_sr_weights")
# Not drawn: of the same model, repeated with other seeds.
NOISE = ("1p2b_last4_2d_rht_sr",)


def data(results: Results) -> pd.DataFrame:
    """Validation losses, and gaps to BF16 to compare the two stable runs."""
    return curve_table(results, RUNS, baseline=BASELINE, text="validation", noise_from=NOISE)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    return curve_figure(table, paper, quantity="loss", with_gaps=True)


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    """Who diverges, and that SR on all of the backward pass does no more than SR on gradients."""
    drawn = paper.claims["C22"].numbers["drawn_divergence_T"]
    words = "SR on gradients = on all of the backward pass, both end; " + ", ".join(
        f"on {key} diverges at {at}T" for key, at in drawn.items()
    )
    return [rules.combine(judge_event(table, paper, "C22", words), judge_order(table, paper, "C22"))]
