"""Several runs on one GPU: what each is told, that they begin together, and the row that they become."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import train_step

from repro.bench.report import ResultsFile

# A run that only keeps the gate: it writes what a case's row holds and how many runs were ready when it went on.
RUN = """
import json, sys, time
from pathlib import Path
gate, out, number = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if number == "broken":
    sys.exit(3)
time.sleep(0.2 * int(number))
(gate / f"ready.{number}").touch()
while not (gate / "go").exists():
    time.sleep(0.01)
case = {"tokens_per_second": 100 + int(number), "flops_per_second_6nd": 7.0, "seconds": [0.5],
        "first_step_seconds": 1.0, "peak_memory_bytes": 5, "model": len(list(gate.glob("ready.*")))}
out.write_text(json.dumps({"cases": [case]}))
"""


def case(number: int, **changes: Any) -> dict[str, Any]:
    """A run's row, a little different for each number."""
    return {
        "model": "8b",
        "recipe": "nvfp4",
        "parameters": 2_000_000,
        "processes": 1,
        "tokens_per_step": 1000,
        "tokens_per_second": 1000 + number,
        "flops_per_second_6nd": 12.0e12 + number,
        "seconds": [0.9 + number, 1.1 + number],
        "first_step_seconds": 8.0 + number,
        "peak_memory_bytes": 2**30 * (number + 1),
        "losses": [10.0, 9.0],
        "compiled": True,
        "scan": "mamba_ssm",
        **changes,
    }


@pytest.mark.parametrize("word", ["--compile", "--no-compile"])
def test_a_run_is_told_what_the_whole_was_told(word: str, tmp_path: Path) -> None:
    words = [word, "--steps", "4", "--warmup", "2", "--batch", "8", "--micro", "1"]
    asked = train_step.parse(["--models", "8b", "53m", "--runs-per-gpu", "1", "2", *words])
    command = train_step.child_command("8b", "nvfp4", asked, gate=tmp_path, out=tmp_path / "0.json")
    assert command[:2] == [sys.executable, train_step.__file__]
    told = train_step.parse(command[2:])
    expected = {"models": ["8b"], "recipes": ["nvfp4"], "runs_per_gpu": None, "gate": tmp_path}
    assert vars(told) == {**vars(asked), **expected, "out": told.out}
    assert told.out.path == tmp_path / "0.json"
    assert told.compile is (word == "--compile")


def test_rates_and_operations_of_runs_add_up_and_how_they_ran_is_theirs() -> None:
    row = train_step.merge([case(0), case(1)])
    assert row["runs_per_gpu"] == 2
    assert row["tokens_per_second"] == 2001
    assert row["tokens_per_second_of_runs"] == [1000, 1001]
    assert row["flops_per_second_6nd"] == 24.0e12 + 1
    assert row["seconds"] == [0.9, 1.1, 1.9, 2.1]
    assert (row["first_step_seconds"], row["peak_memory_bytes"]) == (9.0, 2**31)
    assert (row["compiled"], row["scan"]) == (True, "mamba_ssm")


def test_runs_begin_when_the_last_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(model: str, recipe: str, options: Any, *, gate: Path, out: Path) -> list[str]:
        return [sys.executable, "-c", RUN, str(gate), str(out), out.stem]

    monkeypatch.setattr(train_step, "child_command", command)
    row = train_step.time_shared(3, "8b", "nvfp4", train_step.parse([]))
    assert row["model"] == 3, "one began before all were ready"
    assert row["tokens_per_second_of_runs"] == [100, 101, 102]


def test_a_broken_run_is_told_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(model: str, recipe: str, options: Any, *, gate: Path, out: Path) -> list[str]:
        return [sys.executable, "-c", RUN, str(gate), str(out), "broken" if out.stem == "1" else out.stem]

    monkeypatch.setattr(train_step, "child_command", command)
    with pytest.raises(RuntimeError, match="2 runs of 8b nvfp4 on one GPU: one failed"):
        train_step.time_shared(2, "8b", "nvfp4", train_step.parse([]))


def test_the_table_shows_the_operations_of_all_runs(capsys: pytest.CaptureFixture[str]) -> None:
    train_step.show([train_step.merge([case(0), case(0)])], 48.0e12)
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line[2:5] == ["2", "2.0M", "2,000"]
    assert line[7:9] == ["24.0", "0.500"]


def test_the_file_leaves_it_to_each_row_how_it_ran(tmp_path: Path) -> None:
    kept = ResultsFile(tmp_path / "rows.json")
    train_step.write(kept, [case(0, compiled=False)], torch.device("cpu"), None)
    content = json.loads((tmp_path / "rows.json").read_text())
    assert not {"compiled", "scan"} & content.keys()
    assert content["cases"][0]["compiled"] is False
    assert content["cases"][0]["scan"] == "mamba_ssm"


def test_a_profile_of_runs_that_share_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train_step.parse(["--profile", "--runs-per-gpu", "2"])
    assert ended.value.code == 2
    assert "not with --runs-per-gpu" in capsys.readouterr().err
