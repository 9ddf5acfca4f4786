"""What an own figure and claim say wrongly is told when the runs are planned, not after they were trained."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from synthetic_results import REPO

from repro.analysis.paper_file import check_elements
from repro.cli.inspect import list_command, show_command
from repro.experiments import load
from repro.experiments.elements import load_elements
from repro.workflow.layout import Layout

PAPER = """
title: own
caption: own
source: own
claims: [O1]
needs: {runs: [1p2b_bf16, 1p2b_last4]}
series:
  - {run: 1p2b_last4, label: none, color: blue}
judge:
  O1: {arms: {a: 1p2b_bf16, b: 1p2b_last4}, reach: {because: a statement about these runs}}
"""
CLAIM = "O1: {element: own_figure, kind: order, statement: a is better than b, order: [a, b]}"
# Without those of whoever has followed docs/change.md in this checkout.
PAPERS = [name for name, element in load_elements(REPO / "paper_figures").items() if element.source is None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """configs/ and the paper.yaml of all figures, with one more and its claim."""
    shutil.copytree(REPO / "configs", tmp_path / "configs")
    for name in PAPERS:
        (tmp_path / "paper_figures" / name).mkdir(parents=True)
        shutil.copy(REPO / "paper_figures" / name / "paper.yaml", tmp_path / "paper_figures" / name)
    (tmp_path / "paper_figures" / "own_figure").mkdir()
    write(tmp_path)
    return tmp_path


def write(folder: Path, old: str = "", new: str = "") -> None:
    """The own figure and claim, `old` replaced where it stands."""
    assert not old or (PAPER + CLAIM).count(old) == 1, old
    (folder / "paper_figures" / "own_figure" / "paper.yaml").write_text(PAPER.replace(old, new))
    claims = yaml.safe_load((REPO / "configs" / "claims.yaml").read_text(encoding="utf-8"))
    claims["own"] = yaml.safe_load(CLAIM.replace(old, new))
    (folder / "configs" / "claims.yaml").write_text(yaml.safe_dump(claims, sort_keys=False))


def test_an_own_figure_and_its_claim_are_taken(folder: Path) -> None:
    elements = check_elements(load("tiny", configs_dir=folder / "configs"), folder / "paper_figures")
    assert list(elements) == [*PAPERS, "own_figure"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("color: blue", "color: bleu", r"own_figure/paper\.yaml: series\.0\.color: .* mean 'blue'"),
        ("{run: 1p2b_last4", "{run: 1p2b_last5", r"series\.0\.run: .* nothing trains it; did you mean"),
        (", reach: {because: a statement about these runs}", "", r"judge\.O1: missing reach"),
        ("because: a st", "tokens_per_paramter: 3, because: a st", r"mean 'tokens_per_parameter'"),
        ("arms: {a", "tolerence: 1, arms: {a", r"judge\.O1: unknown key 'tolerence'; .* 'tolerance'"),
        ("order: [a, b]", "order: [a, c]", r"judge\.O1: order names 'c', .* known: a, b"),
        ("kind: order", "kind: order, tolerance: -1", r"claims\.yaml: own\.O1: tolerance: .* greater than 0"),
        ("element: own_figure", "element: own_figuer", r"own\.O1: there is no element .* mean 'own_figure'"),
        ("element: own_figure", "element: fig11", r"own\.O1: element is 'fig11', but 'own_figure' judges"),
        ("source: own", "source: owm", r"own_figure/paper\.yaml: source: 'owm' is no valid value"),
    ],
)
def test_what_an_own_figure_says_wrongly_is_told_when_it_is_planned(
    folder: Path, old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, old, new)
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match=message) as told:
        Layout.load({"tier": "tiny", "results": "results"})
    assert "\n" not in str(told.value)
    assert not (folder / "results").exists(), "frozen before it was refused"
    for command in (lambda: list_command(tier="tiny"), lambda: show_command("own_figure", tier="tiny")):
        with pytest.raises(ValueError, match=message):
            command()


def test_a_claim_that_no_figure_or_a_second_one_judges_is_told(folder: Path) -> None:
    plan = load("tiny", configs_dir=folder / "configs")
    shutil.copytree(folder / "paper_figures" / "own_figure", folder / "paper_figures" / "second")
    with pytest.raises(ValueError, match=r"own\.O1: judged twice, by own_figure and second"):
        check_elements(plan, folder / "paper_figures")
    for name in ("own_figure", "second"):
        path = folder / "paper_figures" / name / "paper.yaml"
        path.write_text(PAPER[: PAPER.index("judge:")].replace("claims: [O1]\n", ""))
    with pytest.raises(ValueError, match=r"own\.O1: no .*paper\.yaml has O1 among its claims"):
        check_elements(plan, folder / "paper_figures")
