"""Names that experiments give to figures and claims: a misspelt one is told before anything runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from repro.workflow.layout import Layout

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("elements: [fig12]", "elements: [fig21]", r"elements: there is no 'fig21'; did you mean 'fig"),
        ("claims: [C14]", "claims: [C41]", r"claims: there is no 'C41'; did you mean 'C"),
    ],
)
def test_a_figure_or_claim_that_does_not_exist_is_told_with_file_and_run(
    old, new, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(ROOT)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    path = tmp_path / "configs" / "experiments" / "ablate_12b.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    config = {"tier": "tiny", "results": str(tmp_path / "results"), "configs": str(tmp_path / "configs")}
    with pytest.raises(ValueError, match=rf"ablate_12b\.yaml: runs\.12b_rht\w+\.{words}"):
        Layout.load(config)
