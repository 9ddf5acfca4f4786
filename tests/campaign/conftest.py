"""Frozen runs of the tiny tier, once for all tests of campaigns; no test may change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.experiments import freeze_all, load


@pytest.fixture(scope="session")
def frozen(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    freeze_all(load("tiny"), folder)
    return folder / "runs"
