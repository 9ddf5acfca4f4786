"""The claims file and an element's paper.yaml: what is read, and what is said about a wrong key."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_results import REPO

from repro.analysis.claims_file import KINDS, load_claims
from repro.analysis.paper import load_paper

CLAIMS = """
exact:
  C1: {element: sec2, statement: "one of 16", value: 0.0625}
runs:
  C5: {element: fig2, kind: value, statement: "below 1 %", value: -1.0}
"""
PAPER = """
title: a title
caption: a caption
claims: [C5]
needs: {runs: [12b_fp8], evaluations: [], mechanisms: [], bench: false}
series:
  - {run: 12b_fp8, label: FP8, color: black}
paper: {parameters: 1.0e+9, panels: {a: {axes: loss}}}
judge:
  C5: {tolerance: 0.3, reach: {parameters: 10, because: it is so}}
"""


def write(folder: Path, claims: str = CLAIMS, paper: str = PAPER) -> tuple[Path, Path]:
    (folder / "fig2").mkdir()
    (folder / "claims.yaml").write_text(claims)
    (folder / "fig2" / "paper.yaml").write_text(paper)
    return folder / "fig2", folder / "claims.yaml"


def test_the_projects_claims_have_a_kind_and_a_statement() -> None:
    claims = load_claims(REPO / "configs" / "claims.yaml")
    assert len(claims) == 38
    assert all(claim.kind in KINDS and claim.statement for claim in claims.values())
    assert claims["C1"].kind == "exact", "the section gives the kind"
    assert claims["C3"].kind == "hardware"


def test_the_scores_of_table_2_are_one_claim() -> None:
    scores = load_claims(REPO / "configs" / "claims.yaml")["T2"]
    assert (len(scores.numbers["tasks"]), len(scores.numbers["groups"])) == (14, 5)
    assert scores.numbers["tasks"]["MMLU"] == [77.36, 76.57]


def test_a_claim_of_unknown_kind_names_the_nearest(tmp_path: Path) -> None:
    _, path = write(tmp_path, CLAIMS.replace("kind: value", "kind: valu"))
    with pytest.raises(ValueError, match=r"runs\.C5: no kind 'valu'; did you mean 'value'"):
        load_claims(path)


def test_a_claim_without_statement_is_named(tmp_path: Path) -> None:
    _, path = write(tmp_path, CLAIMS.replace('statement: "one of 16", ', ""))
    with pytest.raises(ValueError, match=r"exact\.C1: missing statement"):
        load_claims(path)


def test_a_claim_that_stands_twice_is_named(tmp_path: Path) -> None:
    _, path = write(tmp_path, CLAIMS.replace("C5:", "C1:"))
    with pytest.raises(ValueError, match="C1 stands twice, in exact and runs"):
        load_claims(path)


def test_a_claim_that_stands_twice_in_one_section_is_named(tmp_path: Path) -> None:
    _, path = write(tmp_path, "exact:\n  C1: {element: a, statement: b}\n  C1: {element: c, statement: d}\n")
    with pytest.raises(ValueError, match=r"claims\.yaml: line 3: 'C1' is there twice"):
        load_claims(path)


def test_a_missing_claims_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"claims\.yaml: no such file"):
        load_claims(tmp_path / "claims.yaml")


def test_an_element_is_joined_with_its_claims(tmp_path: Path) -> None:
    paper = load_paper(*write(tmp_path))
    assert paper.element == "fig2"
    assert paper.claims["C5"].statement == "below 1 %"
    assert paper.reach("C5").parameters == 10
    assert paper.curves.empty, "an element without curves has no paper.csv"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("caption:", "capton:", "unknown key 'capton'; did you mean 'caption'"),
        ("title: a title\n", "", "missing title"),
        ("claims: [C5]", "claims: [C55]", "has no 'C55'; did you mean 'C5'"),
        ("  C5: {tol", "  C1: {tol", r"judge\.C1: not among the claims of this element"),
        (
            ", reach: {parameters: 10, because: it is so}",
            "",
            r"paper\.yaml: judge\.C5: missing reach, the least",
        ),
        (
            "parameters: 10",
            "paramters: 10",
            r"judge\.C5\.reach: unknown key 'paramters'; did you mean 'param",
        ),
        (", because: it is so", "", r"judge\.C5\.reach: missing because"),
        ("color: black", "color: blak", r"series\[0\]: no color 'blak'; did you mean 'black'"),
        ("color: black", "color: black, dash: dots", r"series\[0\]: no dash 'dots'; did you mean 'dotted'"),
        ("color: black", "colour: black", r"series\[0\]: unknown key 'colour'; did you mean 'color'"),
        (", label: FP8", "", r"series\[0\]: missing label"),
        (
            "{run: 12b_fp8,",
            "{run: 12b_fp9,",
            r"series\[0\]: run '12b_fp9' is not in needs\.runs.* mean '12b_fp8'",
        ),
    ],
)
def test_a_wrong_key_of_an_element_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_paper(*write(tmp_path, paper=PAPER.replace(old, new)))


def test_what_the_paper_is_asked_for_and_does_not_state_is_named(tmp_path: Path) -> None:
    paper = load_paper(*write(tmp_path))
    for stated in (paper.stated, paper.only("a").stated):
        assert stated["parameters"] == 1.0e9
        with pytest.raises(ValueError, match=r"fig2.paper\.yaml: missing paper\.horizon_trillions"):
            stated["horizon_trillions"]
    assert paper.only("a").stated["axes"] == "loss"


def test_curves_with_other_columns_are_named(tmp_path: Path) -> None:
    folder, claims = write(tmp_path)
    (folder / "paper.csv").write_text("series,x,y\na,1,2\n")
    with pytest.raises(ValueError, match=r"paper\.csv: columns must be panel, run, tokens_trillions, value"):
        load_paper(folder, claims)
