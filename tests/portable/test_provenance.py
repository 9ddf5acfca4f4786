"""What a result says that it was made with."""

import subprocess
import sys
from types import ModuleType

import pytest
import torch

from repro.portable import provenance


def test_a_library_without_metadata_tells_its_version_itself(monkeypatch):
    monkeypatch.setattr(provenance, "_LIBRARIES", ("torch", "copied-by-hand"))
    assert provenance.versions().keys() == {"python", "torch"}
    module = ModuleType("copied_by_hand")
    module.__version__ = "2.3"
    monkeypatch.setitem(sys.modules, "copied_by_hand", module)
    assert provenance.versions()["copied-by-hand"] == "2.3"


def test_a_copy_outside_git_has_the_commit_that_it_was_told(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "repro" / "portable" / "provenance.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("REPRO_COMMIT", "0123abc")
    provenance.git_commit.cache_clear()
    assert provenance.git_commit() == "0123abc"
    provenance.git_commit.cache_clear()


@pytest.mark.parametrize(
    ("path", "counts"),
    [("configs/experiments/own.yaml", True), ("paper_figures/own/figure.py", True), ("results/a", False)],
)
def test_a_file_of_ones_own_among_the_content_is_a_change(path, counts, tmp_path, monkeypatch):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    for tracked in ("configs/a.yaml", "README.md"):
        (tmp_path / tracked).parent.mkdir(exist_ok=True)
        (tmp_path / tracked).write_text("a: 1\n")
    git("init")
    git("add", "--all")
    git("commit", "-m", "a")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "repro" / "portable" / "provenance.py"))
    assert not provenance.git_commit.__wrapped__().endswith("+changes")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("a: 1\n")
    assert provenance.git_commit.__wrapped__().endswith("+changes") is counts
    (tmp_path / path).unlink()
    (tmp_path / "README.md").write_text("a: 2\n")
    assert provenance.git_commit.__wrapped__().endswith("+changes"), "a tracked file wherever it lies"


def test_what_every_result_names_is_there():
    described = provenance.describe(torch.device("cpu"))
    assert described.keys() == {"git_commit", "versions", "device", "threads", "date"}
    assert described["versions"]["torch"]
    assert described["device"]
