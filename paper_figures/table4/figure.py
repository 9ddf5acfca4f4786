"""Table 4 (Appendix A): dimensions of the 8B hybrid. Claim T4."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from repro.analysis import source_lines, tables
from repro.analysis.model_table import model_claim, model_data, model_display
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.verdicts import Verdict


def data(results: Results) -> pd.DataFrame:
    """Dimensions and parameter counts of the full-size model and of this tier's stand-in."""
    return model_data(results, "8b")


def display(table: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    return model_display(table, paper)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    notes = source_lines.provenance(
        table, "full-size model: configs/models/paper; counts follow from the shapes"
    )
    return tables.table_figure(display(table, paper), title=paper.title, lines=notes)


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    return [model_claim(table, paper, "T4")]
