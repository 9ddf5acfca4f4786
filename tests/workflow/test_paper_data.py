"""The paper tier's data jobs on a small copy of the data sets: one a shard, and which of them run again."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "data"))
from published import spec, write_corpora  # noqa: E402

from repro.data import verify_data  # noqa: E402
from repro.experiments import load  # noqa: E402

_JOB = re.compile(r"^Job \d+: (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def tier(tmp_path_factory) -> Path:
    """configs/ whose paper tier takes the small data sets, and those."""
    folder = tmp_path_factory.mktemp("tier")
    shutil.copytree(ROOT / "configs", folder / "configs")
    content = spec().model_dump(mode="json")
    vocab_size = load("paper").models["12b"].vocab_size
    whole = content["blends"].pop("whole")
    content |= {"name": "paper", "blends": {"three_phase": whole, "two_phase": whole}}
    content["tokenizer"]["vocab_size"] = vocab_size
    _write(folder, content)
    write_corpora(folder / "corpora")
    return folder


def _write(folder: Path, content: dict) -> None:
    (folder / "configs" / "data" / "paper.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def _content(folder: Path) -> dict:
    return yaml.safe_load((folder / "configs" / "data" / "paper.yaml").read_text(encoding="utf-8"))


def snakemake(folder: Path, *arguments: str) -> str:
    options = ["tier=paper", f"configs={folder / 'configs'}", f"results={folder / 'results'}"]
    options += [f"corpora={folder / 'corpora'}"]
    command = [sys.executable, "-m", "snakemake", "data", "--cores", "2", "--directory", str(folder)]
    command += ["--snakefile", str(ROOT / "Snakefile"), *arguments, "--config", *options]
    done = subprocess.run(
        command, cwd=ROOT, env=None, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def planned(folder: Path) -> set[str]:
    return set(_JOB.findall(snakemake(folder, "--dry-run")))


@pytest.mark.workflow
def test_each_shard_is_a_job_and_only_what_changed_runs_again(tier: Path) -> None:
    done = set(_JOB.findall(snakemake(tier)))
    shards = ("0000 of web_high", "0001 of web_high", "0000 of sft_code", "0000 of papers")
    assert {f"tokenizing shard {shard}" for shard in shards} <= done
    data = tier / "results" / "paper" / "data"
    assert verify_data(data, checksums=True)["name"] == "paper"

    content = _content(tier)
    content["blends"]["three_phase"][0]["blend"]["academic"] = 2
    _write(tier, content)
    assert planned(tier) == set(), "a changed blend tokenises again"

    (data / "shards" / "web_high" / "0001.json").unlink()
    content["sources"][2]["options"]["column"] = "body"
    _write(tier, content)
    assert planned(tier) == {
        "tokenizing shard 0001 of web_high",
        "listing the files of papers",
        "tokenizing shard 0000 of papers",
        "assembling validation text and manifest",
    }
