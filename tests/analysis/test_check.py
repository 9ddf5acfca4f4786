"""`check`: every claim exactly once, exact claims hold, and a page that needs nothing from elsewhere."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import docutils.core
import pytest

from repro.analysis import check
from repro.analysis.claims_file import load_claims
from repro.analysis.verdicts import NOT_MEASURABLE, NOT_MEASURED, REPRODUCED, VERDICTS, Verdict

CLAIMS = """
exact:
  C1: {element: sec2, statement: "one of <16>", value: 0.0625, source: Section 2}
runs:
  C5: {element: fig2, kind: value, statement: "below 1 %", value: -1.0}
"""


def verdict(claim: str, element: str, kind: str = "value", said: str = NOT_MEASURED) -> dict:
    return Verdict(claim, element, kind, "a | statement", "paper", "ours", said, "why", "tiny").to_dict()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "claims.yaml").write_text(CLAIMS)
    put(tmp_path, "fig1", [verdict("C1", "fig1", "exact", REPRODUCED)])
    put(tmp_path, "fig2", [verdict("C5", "fig2")])
    put(tmp_path, "fig3", [])
    return tmp_path


def put(folder: Path, element: str, verdicts: list[dict]) -> None:
    (folder / "elements" / element).mkdir(parents=True, exist_ok=True)
    (folder / "elements" / element / "claims.json").write_text(json.dumps(verdicts))


def run(folder: Path) -> int:
    return check.main(["--results", str(folder), "--claims", str(folder / "claims.yaml")])


def test_all_claims_are_listed_once_in_the_files_order(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(folder) == 0
    content = json.loads((folder / "check.json").read_text())
    assert [entry["claim"] for entry in content["claims"]] == ["C1", "C5"]
    counts = {"reproduced": 1, "contradicted": 0, "unresolved": 0, "not measurable": 0, "not measured": 1}
    assert content["counts"] == counts
    assert "2 claims: 1 reproduced" in capsys.readouterr().out


def test_what_this_size_cannot_show_is_counted_apart_from_what_is_missing(folder: Path) -> None:
    put(folder, "fig2", [verdict("C5", "fig2", said=NOT_MEASURABLE)])
    assert run(folder) == 0
    for name in ("check.md", "check.html"):
        assert "0 unresolved, 1 not measurable at this size, 0 not measured." in (folder / name).read_text()


@pytest.mark.parametrize("said", VERDICTS)
def test_every_verdict_has_its_own_colour_on_the_page(folder: Path, said: str) -> None:
    put(folder, "fig2", [verdict("C5", "fig2", said=said)])
    run(folder)
    marks = re.findall(r'style="color:(#\w{6})">([\w ]+)<', (folder / "check.html").read_text())
    assert [name for _, name in marks] == [REPRODUCED, said]
    assert (marks[0][0] == marks[1][0]) == (said == REPRODUCED)


def test_a_claim_that_no_element_judges_is_an_error(folder: Path, capsys: pytest.CaptureFixture) -> None:
    put(folder, "fig2", [])
    assert run(folder) == 1
    assert "C5: no element judges it" in capsys.readouterr().err


def test_a_claim_that_two_elements_judge_is_an_error(folder: Path, capsys: pytest.CaptureFixture) -> None:
    put(folder, "fig3", [verdict("C5", "fig3")])
    assert run(folder) == 1
    assert "C5: judged by fig2 and fig3" in capsys.readouterr().err


def test_a_claim_that_the_file_does_not_know_is_an_error(folder: Path, capsys: pytest.CaptureFixture) -> None:
    put(folder, "fig3", [verdict("C99", "fig3")])
    assert run(folder) == 1
    assert "C99: judged by fig3, but not in the claims file" in capsys.readouterr().err


def test_what_a_removed_element_left_is_passed_over(folder: Path, tmp_path: Path) -> None:
    for name in ("fig1", "fig2"):
        (tmp_path / "figures" / name).mkdir(parents=True)
        (tmp_path / "figures" / name / "paper.yaml").write_text("title: x\n")
    put(folder, "hadamard_32", [verdict("O1", "hadamard_32")])
    figures = ["--figures", str(tmp_path / "figures")]
    given = ["--results", str(folder), "--claims", str(folder / "claims.yaml"), *figures]
    assert check.main(given) == 0
    assert "O1" not in (folder / "check.json").read_text()
    put(folder, "fig2", [verdict("C5", "fig2"), verdict("C99", "fig2")])
    assert check.main(given) == 1, "of today's elements nothing is passed over"


def test_a_cut_off_list_of_verdicts_is_named(folder: Path, capsys: pytest.CaptureFixture) -> None:
    (folder / "elements" / "fig2" / "claims.json").write_text('[{"claim": "C5"')
    assert run(folder) == 1
    assert "fig2/claims.json: no complete list of verdicts" in capsys.readouterr().err


def test_a_results_folder_that_is_none_is_told(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert check.main(["--results", str(folder / "no"), "--claims", str(folder / "claims.yaml")]) == 1
    assert "no: no results folder with elements/" in capsys.readouterr().err


@pytest.mark.parametrize("said", [said for said in VERDICTS if said != REPRODUCED])
def test_an_exact_claim_that_does_not_hold_fails_the_check(
    said: str, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    """Nor is arithmetic ever unresolved or not measured."""
    put(folder, "fig1", [verdict("C1", "fig1", "exact", said)])
    assert run(folder) == 1
    assert "C1 is exact and does not hold" in capsys.readouterr().err
    assert (folder / "check.html").exists(), "the table is written all the same, to see what is wrong"


def test_the_page_stands_alone_and_escapes_what_it_shows(folder: Path) -> None:
    (folder / "elements" / "fig2" / "figure.png").touch()
    run(folder)
    page = (folder / "check.html").read_text()
    assert not re.search(r"src=|url\(|@import|<script", page)
    assert re.findall(r'href="([^"]+)">(\w+)<', page) == [("elements/fig2/figure.png", "fig2")], (
        "no picture of fig1"
    )
    assert "| C5 ([fig2](elements/fig2/figure.png)) |" in (folder / "check.md").read_text()
    assert "| C1 (fig1) |" in (folder / "check.md").read_text()
    assert "a | statement" in page
    assert "one of <16>" not in page
    assert page.count("<tr>") == 3


def test_the_pages_say_what_the_numbers_are_and_what_they_come_from(folder: Path) -> None:
    judged = verdict("C5", "fig2") | {"numbers": {"parameters": 102_000_000}}
    put(folder, "fig2", [judged])
    (folder / "elements" / "fig2" / "data.csv").write_text("run,replica\na,1\nb,2\nc,\n")
    run(folder)
    for name in ("check.md", "check.html"):
        text = (folder / name).read_text()
        assert "in per cent of the loss: negative is worse" in text
        assert "ends better than b" in text
        assert "95 % interval over the run's or the pair's own seeds" in html.unescape(text)
    for name in ("check.md", "check.html", "landing.rst"):
        text = html.unescape((folder / name).read_text())
        assert "Exact claims (C1) are arithmetic of formats and shapes" in text
        assert (
            "tiny tier, models of 102M parameters that stand for the paper's, up to 2 seeds of a run." in text
        )


def test_the_reports_first_page_counts_the_verdicts_and_is_valid(folder: Path) -> None:
    run(folder)
    text = (folder / "landing.rst").read_text()
    assert "2 claims: 1 reproduced, 0 contradicted" in text
    settings = {"report_level": 1, "halt_level": 1}
    page = docutils.core.publish_parts(text, writer="html", settings_overrides=settings)["html_body"]
    assert "the tiny tier</h1>" in page


def test_pipes_do_not_break_the_markdown_table(folder: Path) -> None:
    run(folder)
    rows = [line for line in (folder / "check.md").read_text().splitlines() if line.startswith("| C")]
    assert len(rows) == 2
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 7 for row in rows)


def test_verdicts_come_back_as_they_were_written(folder: Path) -> None:
    found = check.collect(folder, load_claims(folder / "claims.yaml"))
    assert [entry.to_dict() for entry in found] == [
        verdict("C1", "fig1", "exact", REPRODUCED),
        verdict("C5", "fig2"),
    ]
