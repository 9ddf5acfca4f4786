"""`repro check`: which verdicts let it pass, and where it looks for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import repro


def verdict(claim: str, kind: str, outcome: str) -> dict[str, str]:
    return {
        "claim": claim, "element": "fig2", "kind": kind, "statement": "s", "paper": "1", "ours": "2",
        "verdict": outcome, "reason": "[why]", "tier": "tiny",
    }  # fmt: skip


def write_check(folder: Path, *verdicts: dict[str, str], name: str = "tiny") -> None:
    (folder / name).mkdir()
    (folder / name / "check.json").write_text(json.dumps({"tier": "tiny", "claims": verdicts}))


def test_check_passes_when_exact_claims_hold(tmp_path: Path) -> None:
    write_check(tmp_path, verdict("C1", "exact", "reproduced"), verdict("C5", "value", "contradicted"))
    output = repro("check", "--tier", "tiny", "--results", str(tmp_path))
    assert "[why]" in output
    assert "1 reproduced, 1 contradicted" in output


def test_check_of_the_records_reads_their_own_folder(tmp_path: Path) -> None:
    write_check(tmp_path, verdict("C1", "exact", "reproduced"), name="tiny-recorded")
    options = ("--tier", "tiny", "--results", str(tmp_path))
    assert "1 reproduced" in repro("check", "--recorded", *options)
    assert "recorded" not in repro("check", *options, code=2), "nothing of the tiny tier is recorded"


def test_check_names_the_records_where_nothing_was_trained(tmp_path: Path) -> None:
    output = repro("check", "--tier", "proxy", "--results", str(tmp_path), code=2)
    assert "`make recorded`, then `repro check --recorded --tier proxy`" in output
    assert output.count("\n") == 1, output
    output = repro("check", "--recorded", "--tier", "proxy", "--results", str(tmp_path), code=2)
    assert (
        "`make recorded` writes it, or `snakemake --cores 2 check --config tier=proxy recorded=true`"
        in output
    )
    output = repro("check", "--recorded", "--tier", "tiny", "--results", str(tmp_path), code=2)
    assert "no run of tier tiny is recorded; recorded are runs of tier proxy: add `--tier proxy`" in output


@pytest.mark.parametrize("outcome", ["contradicted", "not measured"])
def test_check_fails_when_an_exact_claim_does_not_hold(outcome: str, tmp_path: Path) -> None:
    write_check(tmp_path, verdict("C1", "exact", outcome), verdict("C5", "value", "reproduced"))
    assert "do not hold: C1" in repro("check", "--tier", "tiny", "--results", str(tmp_path), code=1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"claims": []}', '{"claims": [{"claim": "C1"}]}'])
def test_check_refuses_a_damaged_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "check.json").write_text(text)
    assert "check.json" in repro("check", "--tier", "tiny", "--results", str(tmp_path), code=2)
