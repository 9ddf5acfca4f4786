"""Figure 13 (Appendix E.4.3): sign vectors of the Hadamard transform, 12B model. Claim C15."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from repro.analysis.arms import FORK_SPAN, fork_end, judge_order
from repro.analysis.curve_figure import curve_figure
from repro.analysis.curves import curve_table
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.verdicts import Verdict

BASELINE, MAIN = "12b_fp8", "12b_nvfp4"
FORKS = ("12b_signs_none", "12b_signs_per_transform")


def data(results: Results) -> pd.DataFrame:
    """Training losses and gaps to FP8 of the run that goes on and of its forks, replicas included."""
    return curve_table(results, [MAIN, *FORKS], baseline=BASELINE, text="train")


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    return curve_figure(table, paper, quantity="gap", span=FORK_SPAN, read=fork_end(table, FORKS))


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    return [judge_order(table, paper, "C15", at=fork_end(table, FORKS))]
