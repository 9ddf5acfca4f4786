"""What a result says that it was made with."""

import sys
from types import ModuleType

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


def test_what_every_result_names_is_there():
    described = provenance.describe(torch.device("cpu"))
    assert described.keys() == {"git_commit", "versions", "device", "threads", "date"}
    assert described["versions"]["torch"]
    assert described["device"]
