"""What the paper states of an element, and results as of the size that it states it for."""

from __future__ import annotations

import pandas as pd
from synthetic_results import REPO

from paper_figures.__main__ import FOLDER
from repro.analysis.paper import Paper, load_paper


def paper_of(element: str) -> Paper:
    """paper.yaml and paper.csv of the element, with its claims of configs/claims.yaml."""
    return load_paper(FOLDER / element, REPO / "configs" / "claims.yaml")


def of_the_papers_size(table: pd.DataFrame) -> pd.DataFrame:
    """A table of results as if the paper's largest model had made them, over its whole horizon."""
    return table.assign(num_parameters=12_310_000_000, end_tokens=10**13)
