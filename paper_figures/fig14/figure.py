"""Figure 14 (Appendix E.5): one or two representations of weights or of activations, 1.2B transformer. Claim C26."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure

from repro.analysis import rules
from repro.analysis.arms import groups_of, judge_order
from repro.analysis.comparisons import pairs_of
from repro.analysis.curve_figure import curve_figure
from repro.analysis.curves import curve_table
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.verdicts import Verdict

BASELINE = "1p2b_bf16"
RUNS = (
    "1p2b_weights_different",
    "1p2b_weights_same",
    "1p2b_weights_2d",
    "1p2b_activations_different",
    "1p2b_activations_same",
)
# Not drawn: of the same model, repeated with other seeds.
NOISE = ("1p2b_last4", "1p2b_last4_2d_rht_sr")


def data(results: Results) -> pd.DataFrame:
    """Validation losses and gaps to BF16; the replicas of other runs of the model tell about the noise."""
    return curve_table(results, RUNS, baseline=BASELINE, text="validation", noise_from=NOISE)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    return curve_figure(table, paper, quantity="gap")


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    """The order of the weights at the end; of the activations: equal before decay, in order at the end.

    The pairs of all three orders share one correction for several comparisons.
    """
    rule = paper.judge["C26"]
    parts = [
        {"order": paper.claims["C26"].numbers["order"], "equal_within": None},
        {"order": rule["late_order"], "equal_within": None},
        {"order": rule["early_equal"], "equal_within": rule["equal_within"], "at": rule["early_at"]},
    ]
    pairs = [pair for part in parts for pair in pairs_of(groups_of(part["order"]), part["equal_within"])]
    *at_end, early = (judge_order(table, paper, "C26", comparisons=len(pairs), **part) for part in parts)
    if early.ours != "-":  # else the same names stand there twice with two values
        early = replace(early, ours=f"at {100 * rule['early_at']:g} %: {early.ours}")
    return [rules.combine(*at_end, early)]
