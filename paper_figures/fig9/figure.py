"""Figure 9 (Appendix E.2): which blocks keep BF16 in plain NVFP4, 1.2B transformer. Claim C20."""

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
RUNS = ("1p2b_last4", "1p2b_first2_last2", "1p2b_last2", "1p2b_last1", "1p2b_first4")
# Not drawn: of the same model, repeated with other seeds.
NOISE = ("1p2b_last4_2d_rht_sr",)


def data(results: Results) -> pd.DataFrame:
    """Validation losses, and gaps to BF16 for the order of the two stable runs."""
    return curve_table(results, RUNS, baseline=BASELINE, text="validation", noise_from=NOISE)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    return curve_figure(table, paper, quantity="loss", with_gaps=True)


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    """Who diverges, and that of the two stable runs the one with the last four blocks is better."""
    drawn = paper.claims["C20"].numbers["drawn_divergence_T"]
    words = "last 4 and first 2 + last 2 end; " + ", ".join(
        f"{key} diverges at {at}T" for key, at in drawn.items()
    )
    return [rules.combine(judge_event(table, paper, "C20", words), judge_order(table, paper, "C20"))]
