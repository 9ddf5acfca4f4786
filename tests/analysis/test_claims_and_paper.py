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
    with pytest.raises(ValueError, match=r"exact\.C1: key 'statement' is missing"):
        load_claims(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value: -1.0", "tolerence: 0.3", r"unknown key 'tolerence'; did you mean 'tolerance'"),
        ("value: -1.0", "tolerance: -0.3", r"tolerance: Input should be greater than 0, found -0\.3"),
        ("value: -1.0", "at: 80", r"at: Input should be less than or equal to 1, found 80"),
        ("value: -1.0", "order: a", r"order: Input should be a valid list, found 'a'"),
        ("value: -1.0", "order: [a, b], drawn: [1.0]", r"drawn has 1 values, order 2 names"),
    ],
)
def test_a_wrong_key_or_value_of_a_claim_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    _, path = write(tmp_path, CLAIMS.replace(old, new))
    with pytest.raises(ValueError, match=rf"claims\.yaml: runs\.C5: {message}"):
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
        ("title: a title\n", "", "key 'title' is missing"),
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
            r"judge\.C5: unknown key 'reach\.paramters'; did you mean 'param",
        ),
        (", because: it is so", "", r"judge\.C5: key 'reach\.because' is missing"),
        ("color: black", "color: blak", r"series\.0\.color: no color 'blak'; did you mean 'black'"),
        (
            "color: black",
            "color: black, dash: dots",
            r"series\.0\.dash: no dash 'dots'; did you mean 'dotted'",
        ),
        ("color: black", "colour: black", r"unknown key 'series\.0\.colour'; did you mean 'color'"),
        (", label: FP8", "", r"key 'series\.0\.label' is missing"),
        (
            "{run: 12b_fp8,",
            "{run: 12b_fp9,",
            r"series\.0\.run: run '12b_fp9' is not in needs\.runs.* mean '12b_fp8'",
        ),
        (PAPER[PAPER.index("judge:") :], "", r"judge\.C5: missing reach"),
        (
            "{tolerance: 0.3",
            "{tolerence: 0.3",
            r"judge\.C5: unknown key 'tolerence'; did you mean 'tolerance'",
        ),
        ("{tolerance: 0.3", "{tolerance: -0.3", r"judge\.C5: tolerance: Input should be greater than 0"),
        ("parameters: 10", "parameters: 1e9", r"judge\.C5: reach\.parameters: .* number, found '1e9'"),
        (
            "{tolerance: 0.3",
            "{arms: {a: 12b_fp9}",
            r"judge\.C5\.arms\.a: run '12b_fp9' is not in needs.* mean '12b_fp8'",
        ),
        ("{tolerance: 0.3", "{run: 12b_fp9", r"judge\.C5\.run: run '12b_fp9' is not in needs"),
        (
            "{tolerance: 0.3",
            "{arms: {ab: 12b_fp8}, order: [[ac, ab]]",
            r"judge\.C5: order names 'ac', which is no key of arms; did you mean 'ab'",
        ),
        (
            "{tolerance: 0.3",
            "{arms: {ab: 12b_fp8}, finite: {abc: true}",
            r"judge\.C5: finite names 'abc', which is no key of arms; did you mean 'ab'",
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


def test_the_order_of_the_claim_itself_names_arms(tmp_path: Path) -> None:
    claims = CLAIMS.replace("kind: value", "kind: order, order: [16, 4], drawn: {16: -1.0, 8: -2.0}")
    paper = PAPER.replace("{tolerance: 0.3", "{arms: {16: 12b_fp8, 3: 12b_fp8}")
    folder, path = write(tmp_path, claims, paper)
    with pytest.raises(ValueError, match=r"judge\.C5: order names '4', which is no key of arms"):
        load_paper(folder, path)
    (folder / "paper.yaml").write_text(paper.replace(" 3:", " 4:"))
    with pytest.raises(ValueError, match=r"judge\.C5: drawn names '8', which is no key of arms"):
        load_paper(folder, path)
