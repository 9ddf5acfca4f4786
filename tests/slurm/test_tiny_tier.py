"""The tiny tier through the real profile on a real Slurm: every rule, a fork, and a chain of jobs.

Every rule and not every run: the copy has one element and its claims, so that the check is complete without the rest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from slurm_project import ROOT, Folder, early

from repro.portable.metrics import comparable

pytestmark = pytest.mark.slurm
ELEMENT = "table1"


def claims_of_element(folder: Path) -> list[str]:
    return yaml.safe_load((folder / f"paper_figures/{ELEMENT}/paper.yaml").read_text())["claims"]


@pytest.fixture
def copy(tmp_path, cluster, clean) -> Folder:
    ignored = shutil.ignore_patterns("__pycache__", "recorded")
    for name in ("repro", "paper_figures", "configs", "slurm"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "Snakefile", tmp_path)
    for path in sorted((tmp_path / "paper_figures").glob("*/paper.yaml")):
        if path.parent.name != ELEMENT:
            shutil.rmtree(path.parent)
    claims = tmp_path / "configs/claims.yaml"
    sections = yaml.safe_load(claims.read_text())
    kept = {
        name: {claim: text for claim, text in section.items() if claim in claims_of_element(tmp_path)}
        for name, section in sections.items()
    }
    claims.write_text(yaml.safe_dump({name: section for name, section in kept.items() if section}))
    for path in sorted((tmp_path / "configs/experiments").glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        for run in content["runs"].values():
            run["elements"] = [name for name in run.get("elements", []) if name == ELEMENT]
            run["claims"] = [claim for claim in run.get("claims", []) if claim in claims_of_element(tmp_path)]
        path.write_text(yaml.safe_dump(content, sort_keys=False))
    tier = tmp_path / "configs/tiers/tiny.yaml"
    every = "checkpoints: {every: 0.5,"
    assert every in tier.read_text(), (
        "adapt the test: it holds a run at a checkpoint early in its first segment"
    )
    tier.write_text(tier.read_text().replace(every, "checkpoints: {every: 0.05,"))
    clean.append(Folder(tmp_path, cluster))
    return clean[-1]


def test_every_rule_a_fork_and_a_chain(copy):
    wanted = ["check", *(f"results/tiny/{kind}/12b_rht4.csv" for kind in ("evaluations", "mechanisms"))]
    copy.site(**early(20))
    process = copy.start_snakemake(*wanted, "--config", "tier=tiny", PYTHONPATH=str(copy.folder))
    copy.meet_the_time_limit("12b_nvfp4", step=8)
    copy.ends(process)
    for name in ("figure.png", "claims.json", "data.csv"):
        assert (copy.results / "elements" / ELEMENT / name).exists(), name
    checked = {entry["claim"] for entry in json.loads((copy.results / "check.json").read_text())["claims"]}
    assert checked == set(claims_of_element(copy.folder))
    for rule in ("prepare_data", "train", "evaluate", "measure_mechanisms", "gemm_rates"):
        assert (copy.folder / f".snakemake/slurm_logs/rule_{rule}").is_dir(), f"{rule} was no job of Slurm"
    for path in wanted[1:]:
        assert len((copy.folder / path).read_text().splitlines()) > 1, f"{path} is empty"
    assert "complete" in copy.history("12b_rht4"), "the fork was trained"

    alone = copy.folder / "alone/runs/12b_nvfp4/0"
    alone.mkdir(parents=True)
    shutil.copy(copy.frozen("12b_nvfp4") / "run.yaml", alone)
    data, state = copy.results / "data", copy.folder / "alone/state"
    again = [sys.executable, "-m", "repro.portable", str(alone / "run.yaml"), "--data", str(data)]
    again += ["--state", str(state), "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy.folder)}
    subprocess.run(again, cwd=copy.folder, env=environment, check=True, capture_output=True)
    expected = comparable((alone / "metrics.jsonl").read_text())
    copy.unharmed(
        "12b_nvfp4", expected, r"time limit near; saved at step \d+; queued again", "goes on from step"
    )
