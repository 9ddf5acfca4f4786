"""`snakemake --profile slurm -n all`: the whole paper tier, and what each of its jobs asks the cluster for."""

import re
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.workflow
ROOT = Path(__file__).resolve().parents[2]
ON_THE_CLUSTER = ("preparing", "training", "evaluating", "measuring")
ASKS = re.compile(
    r" \((\d+) nodes?(?: x (\d) GPUs?)?, (\d+) GB a node, (\d+) minutes a job(; .* expected)?\)"
    r"(?: \(refuses: [^)]*\))?$"
)


def test_every_job_of_the_paper_says_what_it_asks_for(project):
    shutil.copytree(ROOT / "slurm", project.folder / "slurm")
    jobs = project.dry_run("all", "--profile", "slurm", "--config", "site=slurm/examples/gb200_nvl72.yaml")
    asked = {job: ASKS.search(job) for job in jobs if job.startswith(ON_THE_CLUSTER)}
    assert not [job for job, found in asked.items() if not found]
    assert len([job for job in asked if job.startswith("training")]) == 52
    nodes = {"12b": "92", "8b": "32", "1p2b": "16"}
    for job, found in asked.items():
        if job.startswith("training"):
            family = job.removeprefix("training ").partition("_")[0]
            assert found.groups()[:4] == (nodes[family], "4", "800", "240"), job
        else:
            assert found[1] == "1", f"{job}: one node"
            shares = job.startswith("evaluating")
            assert found[2] == ("4" if shares else None if job.startswith("preparing") else "1"), job
            assert 6 <= int(found[3]) <= 850, f"{job}: what its libraries alone take, at least"
