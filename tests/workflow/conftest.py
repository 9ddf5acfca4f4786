"""A copy of the project with every result of the tiny tier in place as an empty file: what would run again?"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_JOB = re.compile(r"^Job \d+: (.+)$", re.MULTILINE)


class Project:
    """One copy; `dry_run` tells the jobs that Snakemake would run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def dry_run(self, *arguments: str) -> set[str]:
        """Messages of the planned jobs: "training 12b_fp8, segment 0", "drawing fig10", ..."""
        done = self.snakemake("--dry-run", *arguments)
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-3000:]
        return set(_JOB.findall(output))

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.folder / path
        text = file.read_text(encoding="utf-8")
        assert old in text, f"{path} no longer holds {old!r}: adapt the test"
        file.write_text(text.replace(old, new, 1), encoding="utf-8")


def _copy(folder: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "recorded", "*.egg-info")
    for name in ("repro", "paper_figures", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "Snakefile", folder)
    past = time.time() - 1000
    for path in folder.rglob("*"):
        os.utime(path, (past, past))


def _fill_results(folder: Path) -> None:
    """Every file that `all` makes, empty, younger than its inputs: one age a stage."""
    done = Project(folder).snakemake("--summary", "all")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    now = time.time() - 500
    for frozen in folder.glob("results/*/runs/*/*/run.yaml"):
        os.utime(frozen, (now - 100, now - 100))
    for line in done.stdout.splitlines():
        name = line.split("\t")[0]
        if name.startswith("results/"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.utime(path, (now, now))


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    _copy(folder)
    _fill_results(folder)
    return folder


@pytest.fixture
def project(finished, tmp_path) -> Project:
    """A fresh copy of the finished project, times kept."""
    folder = tmp_path / "project"
    shutil.copytree(finished, folder, copy_function=shutil.copy2, ignore=shutil.ignore_patterns(".snakemake"))
    return Project(folder)
