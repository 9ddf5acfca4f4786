"""Figure 11 (Appendix E.4.1): Hadamard transforms on the inputs of one GEMM, 1.2B transformer. Claim C23."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from repro.analysis.arms import judge_order
from repro.analysis.curve_figure import curve_figure
from repro.analysis.curves import curve_table
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.verdicts import Verdict

BASELINE = "1p2b_bf16"
RUNS = ("1p2b_last4", "1p2b_rht_wgrad", "1p2b_rht_dgrad", "1p2b_rht_fprop")
# Not drawn: of the same model, repeated with other seeds.
NOISE = ("1p2b_last4_2d_rht_sr",)


def data(results: Results) -> pd.DataFrame:
    """Validation losses and gaps to BF16, replicas included."""
    return curve_table(results, RUNS, baseline=BASELINE, text="validation", noise_from=NOISE)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    return curve_figure(table, paper, quantity="gap")


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    return [judge_order(table, paper, "C23")]
