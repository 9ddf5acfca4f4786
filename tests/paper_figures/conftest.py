"""Invented results of the tiny tier with evaluations, mechanisms and rates, and all elements made from them once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "analysis"))
from synthetic_results import (
    REPO,
    named_gap,
    write_bench,
    write_evaluations,
    write_mechanisms,
    write_results,
)

from paper_figures.__main__ import elements, run
from repro.analysis.results import Results


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results folder without elements; two runs diverge, one of them before its first validation."""
    folder = tmp_path_factory.mktemp("invented")
    results = write_results(
        folder, gap_percent=named_gap, noise_percent=0.1, diverges={"1p2b_last1": 0.4, "1p2b_base_all": 0.05}
    )
    write_evaluations(results, code_drop=0.08)
    write_mechanisms(results, rising=0.05)
    write_bench(results)
    return results


@pytest.fixture
def results(written: Path) -> Results:
    return Results(written, configs=REPO / "configs")


@pytest.fixture(scope="session")
def made(written: Path) -> Path:
    """The same folder with data.csv and claims.json of every element."""
    for element in elements():
        for step in ("data", "claims"):
            run(element, step, written, configs=REPO / "configs")
    return written
