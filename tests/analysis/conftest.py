"""Invented results of the tiny tier, written once; a test that damages them gets a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from synthetic_results import REPO, named_gap, write_results

from repro.analysis.results import Results


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the invented results: 1p2b_last1 diverges at 40 %, 1p2b_base_all before its first validation."""
    folder = tmp_path_factory.mktemp("invented")
    return write_results(
        folder,
        gap_percent=named_gap,
        noise_percent=0.1,
        diverges={"1p2b_last1": 0.4, "1p2b_base_all": 0.05},
    )


@pytest.fixture
def results(written: Path) -> Results:
    return Results(written, configs=REPO / "configs")


@pytest.fixture
def damaged(written: Path, tmp_path: Path) -> Path:
    """A copy of one fork and its parent that a test may damage."""
    folder = tmp_path / "tiny"
    for run in ("12b_nvfp4", "12b_without_sr", "12b_fp8"):
        shutil.copytree(written / "runs" / run, folder / "runs" / run)
    return folder
