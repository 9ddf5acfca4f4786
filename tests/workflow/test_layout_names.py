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


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "  12b_fp8: [0.2, 0.4, 0.6, 0.8]\n",
            "evaluate_at: says nothing of '12b_fp8', which .*/fig3/.* evaluates",
        ),
        (
            "  1p2b_last4: [1.0]\n",
            "measure_at: says nothing of '1p2b_last4', which .*/mechanisms/.* measures",
        ),
    ],
)
@pytest.mark.parametrize("left", ["", "an empty list"])
def test_a_run_that_a_figure_looks_at_without_saying_where_is_told_with_file_run_and_figure(
    line, words, left, tmp_path, monkeypatch
):
    monkeypatch.chdir(ROOT)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    path = tmp_path / "configs" / "tiers" / "tiny.yaml"
    text = path.read_text(encoding="utf-8")
    assert text.count(line) == 1
    path.write_text(text.replace(line, f"{line.partition(':')[0]}: []\n" if left else ""), encoding="utf-8")
    config = {"tier": "tiny", "results": str(tmp_path / "results"), "configs": str(tmp_path / "configs")}
    with pytest.raises(ValueError, match=rf"tiers/tiny\.yaml: {words}"):
        Layout.load(config)
    assert not (tmp_path / "results").exists(), "frozen before it was refused"
