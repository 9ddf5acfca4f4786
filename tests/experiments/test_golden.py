"""The resolved text of every run is the one in git, or the test shows what a change really changes."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from repro.experiments import load
from repro.experiments.golden import flatten, golden_text, resolved, write_golden

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
TIERS = sorted(path.stem for path in (ROOT / "configs" / "tiers").glob("*.yaml"))
MOST_LINES = 60


@pytest.mark.parametrize("tier", TIERS)
def test_resolved_runs_are_those_in_git(tier: str) -> None:
    plan = load(tier, configs_dir=ROOT / "configs")
    stored = {path.stem: path.read_text(encoding="utf-8") for path in (GOLDEN / tier).glob("*.txt")}
    lines: list[str] = []
    for name in sorted({*plan.runs, *stored}):
        old = stored.get(name, "").splitlines()
        new = golden_text(plan.runs[name]).splitlines() if name in plan.runs else []
        lines += difflib.unified_diff(old, new, f"golden/{tier}/{name}.txt", "configs", lineterm="", n=0)
    shown = "\n".join(lines[:MOST_LINES]) + ("\n..." if len(lines) > MOST_LINES else "")
    assert not lines, (
        f"resolved runs of tier {tier} changed; if that is meant: repro freeze --golden\n{shown}"
    )


def test_every_key_of_a_run_stands_in_its_text(tiny) -> None:
    run = tiny.run("12b_rht4")
    flat = dict(flatten(run.segments[0].frozen))
    assert set(flat) - set(resolved(run)) == {"run_hash", "init_from.run_hash"}


def test_what_segments_share_stands_once(tiny) -> None:
    text = golden_text(tiny.run("12b_nvfp4"))
    assert text.count("recipe.wgrad.x.hadamard: 16\n") == 1
    assert [f"segment.{i}.schedule.end_tokens: " in text for i in range(5)] == [True] * 4 + [False]


def test_lists_and_empty_values_are_one_line_each() -> None:
    content = {"a": [], "b": {}, "c": [1, 2], "d": [{"e": None}, {"e": "x"}]}
    assert dict(flatten(content)) == {
        "a": "[]", "b": "{}", "c": "[1, 2]", "d[0].e": "null", "d[1].e": '"x"',
    }  # fmt: skip


def test_renewing_writes_what_differs_and_removes_what_is_gone(tiny, tmp_path: Path) -> None:
    written, removed = write_golden(tiny, tmp_path)
    assert len(written) == len(tiny.runs)
    assert removed == []
    (tmp_path / "tiny" / "gone.txt").write_text("")
    (tmp_path / "tiny" / "12b_rht4.txt").write_text("old")
    written, removed = write_golden(tiny, tmp_path)
    assert [path.name for path in written] == ["12b_rht4.txt"]
    assert [path.name for path in removed] == ["gone.txt"]
