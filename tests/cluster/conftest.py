"""Frozen segments of the paper tier, as the cluster backend sees them."""

from pathlib import Path

import pytest

from repro.cluster.frozen import segment_of
from repro.cluster.layout import load_layout
from repro.experiments import load


@pytest.fixture(scope="session")
def paper():
    return load("paper")


@pytest.fixture(scope="session")
def segment(paper):
    """segment("12b_nvfp4") or segment("12b_nvfp4", 1): one frozen segment."""

    def get(run, index=-1):
        part = paper.run(run).segments[index]
        return segment_of(dict(part.frozen), Path(part.folder) / "run.yaml")

    return get


@pytest.fixture(scope="session")
def layouts():
    return {name: load_layout(name) for name in ("gb200", "b200x8", "h200x8")}
