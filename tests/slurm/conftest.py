"""A Slurm of four nodes for the session, and projects on it whose training lasts some seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster, missing, wait_for
from slurm_project import Folder, Project, small


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: not among the few minutes of `make test-slurm-quick`")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("one cluster a machine: run `pytest tests/slurm` by itself")
    if reason := missing():
        pytest.skip(f"no Slurm to start: {reason}")
    started = Cluster(tmp_path_factory.mktemp("slurm"))
    started.start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture
def clean(cluster) -> Iterator[list[Folder]]:
    """Folders to close; afterwards no job is left and every node is idle again."""
    folders: list[Folder] = []
    yield folders
    for folder in folders:
        folder.close()
    cluster.run("scancel", "--user", str(os.getuid()))
    wait_for(lambda: not cluster.jobs("running,completing,pending"), "the jobs to be gone")
    cluster.run("scontrol", "update", f"NodeName=node[1-{cluster.num_nodes}]", "State=RESUME")
    wait_for(cluster.is_idle, "all nodes to be idle")


@pytest.fixture
def project(tmp_path, cluster, prepared, clean) -> Project:
    clean.append(Project(tmp_path, cluster, prepared))
    return clean[-1]


@pytest.fixture(scope="session")
def undisturbed(cluster, tmp_path_factory, prepared) -> list[dict]:
    """Metrics of the run of Project.freeze, trained in one go by one process without Slurm."""
    reference = Project(tmp_path_factory.mktemp("undisturbed"), None, prepared)
    reference.freeze("calm")
    return reference.train_alone("calm")
