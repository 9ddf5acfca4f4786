"""The tiny tier through the real profile on a real Slurm: every rule but the check, forks, and chains of jobs.

The check needs every run of the tier; it runs beside Snakemake (a local rule), so nothing of Slurm is in it. Jobs are
told to stop some seconds after they start, so that training goes through chains.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from repro.portable.metrics import comparable

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).resolve().parents[2]

SITE = {
    "partition": {"cpu": "cpu", "gpu": "gpu"},
    "gpus_per_node": 8,
    "cpus_per_node": 8,
    "memory_gb_per_node": 8,
    "time_limit_minutes": 6,
    "warn_seconds": 338,  # training jobs ask for the whole limit: told to stop 22 s after their start
    "tries_without_progress": 5,
}


@pytest.fixture
def copy(tmp_path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "recorded")
    for name in ("repro", "paper_figures", "configs", "slurm"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "Snakefile", tmp_path)
    (tmp_path / "slurm/site.yaml").write_text(yaml.safe_dump(SITE))
    tier = tmp_path / "configs/tiers/tiny.yaml"
    horizon = "horizon_tokens: 81920 "
    assert horizon in tier.read_text(), (
        "adapt the test: a run of the 12B stand-in must last longer than one job"
    )
    tier.write_text(tier.read_text().replace(horizon, "horizon_tokens: 245760 "))
    return tmp_path


def test_every_rule_forks_and_chains(copy, cluster):
    results = copy / "results/tiny"
    wanted = ["table1", "results/tiny/runs/12b_rht4/0/done.json"]
    wanted += [f"results/tiny/{kind}/12b_nvfp4.csv" for kind in ("evaluations", "mechanisms")]
    command = [sys.executable, "-m", "snakemake", "--profile", "slurm", *wanted, "--nocolor", "--jobs", "2"]
    command += ["--slurm-init-seconds-before-status-checks", "5", "--config", "tier=tiny"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy)}
    with open(copy / "snakemake.log", "w") as log:
        done = subprocess.run(
            command, cwd=copy, env=environment, stdout=log, stderr=log, timeout=1200, check=False
        )
    text = (copy / "snakemake.log").read_text()
    assert done.returncode == 0, text[-6000:]
    for name in ("figure.png", "claims.json", "data.csv"):
        assert (results / "elements/table1" / name).exists(), name
    for rule in ("prepare_data", "train", "evaluate", "measure_mechanisms", "gemm_rates"):
        assert (copy / f".snakemake/slurm_logs/rule_{rule}").is_dir(), f"{rule} was no job of Slurm"
    histories = {path.stem: path.read_text() for path in (results / "logs/train").glob("*.history")}
    assert {"12b_rht4.0", "12b_nvfp4.0", "12b_nvfp4.3"} <= set(histories)
    assert any("time limit near; saved at step" in history for history in histories.values()), histories
    assert all("given up" not in history for history in histories.values()), histories

    alone = copy / "alone/runs/12b_nvfp4/0"
    alone.mkdir(parents=True)
    shutil.copy(results / "runs/12b_nvfp4/0/run.yaml", alone)
    again = [sys.executable, "-m", "repro.portable", str(alone / "run.yaml"), "--data", str(results / "data")]
    again += ["--state", str(copy / "alone/state"), "--threads", "1"]
    subprocess.run(again, cwd=copy, env=environment, check=True, capture_output=True)
    found, expected = (
        comparable((folder / "metrics.jsonl").read_text()) for folder in (results / "runs/12b_nvfp4/0", alone)
    )
    differing = [(one, other) for one, other in zip(found, expected, strict=True) if one != other]
    assert not differing, f"the chain of jobs differs from one process: {differing[0]}"
