"""The whole command on a run made by hand: from checkpoints to the table, and what goes wrong on the way."""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path

import pytest
import yaml

from repro.evaluate import __main__ as command
from repro.evaluate.kept import answers_folder
from repro.evaluate.table import COLUMNS
from repro.portable.checkpoint import StateLock


def run(results: Path, evals: Path, *extra: str) -> int:
    return command.main(["test_run", "--results", str(results), "--evals", str(evals), *extra])


def table(results: Path) -> list[dict[str, str]]:
    with open(results / "evaluations" / "test_run.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _stopped(*_, **__):
    raise KeyboardInterrupt


def test_table_has_a_line_a_task_and_a_mean_a_group_at_each_wanted_checkpoint(
    results: Path, evals: Path
) -> None:
    assert run(results, evals) == 0
    rows = table(results)
    assert tuple(rows[0]) == COLUMNS
    assert [(row["tokens"], row["group"], row["task"]) for row in rows] == [
        (tokens, group, task)
        for tokens in ("100", "300")
        for group, task in (
            ("general", "word"),
            ("general", "order"),
            ("math", "sum"),
            ("general", "mean"),
            ("math", "mean"),
        )
    ]
    assert {row["fraction"] for row in rows} == {"0.25", "0.75"}
    for row in rows:
        value, count = float(row["value"]), int(row["num_items"])
        assert 0 <= value <= 1
        if row["task"] == "word":
            assert count == 20
            # lm-eval's standard error of a mean of zeros and ones: the sample's, n - 1.
            assert float(row["stderr"]) == pytest.approx(
                math.sqrt(value * (1 - value) / (count - 1)), abs=1e-6
            )
    word, order, _, mean, _ = rows[:5]
    assert float(mean["value"]) == pytest.approx((float(word["value"]) + float(order["value"])) / 2)
    assert int(mean["num_items"]) == 40


def test_same_checkpoint_scores_the_same_again_and_is_not_scored_twice(
    results: Path, evals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(results, evals) == 0
    first = table(results)
    assert run(results, evals, "--fresh") == 0
    assert table(results) == first, "the same weights scored differently"
    monkeypatch.setattr("repro.evaluate.folder.score_tasks", lambda *_, **__: pytest.fail("scored again"))
    assert run(results, evals) == 0
    assert table(results) == first


def test_changed_items_are_scored_again(results: Path, evals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(results, evals) == 0
    path = results / "data" / "evals" / "word.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:12]))
    assert run(results, evals) == 0
    assert {row["num_items"] for row in table(results) if row["task"] == "word"} == {"12"}


def test_answers_of_other_settings_go_when_an_evaluation_ends(
    results: Path, evals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a stopped evaluation leaves stays while one with changed settings may still be stopped itself."""
    [state] = (results / "state").iterdir()
    kept = [state / "evaluations" / f"{tokens}-aaaa.json" for tokens in (100, 200)]
    left = [answers_folder(path, "MMLU") / "part.json" for path in kept]
    for path in left:
        path.parent.mkdir(parents=True)
        path.write_text("[]")
    with monkeypatch.context() as patch:
        patch.setattr(command, "score", _stopped)
        assert run(results, evals) == 130
    assert all(path.exists() for path in left)
    assert run(results, evals) == 0
    assert [path.exists() for path in left] == [False, True], "checkpoint 200 was not evaluated"


def test_export_keeps_folders_that_transformers_loads(results: Path, evals: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert run(results, evals, "--export", str(tmp_path / "hf")) == 0
    folders = sorted(path.name for path in (tmp_path / "hf").iterdir())
    assert folders == ["test_run-100", "test_run-300"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf" / "test_run-300")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "hf" / "test_run-300")("the cat", return_tensors="pt")
    assert model(tokens["input_ids"]).logits.isfinite().all()


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_not_exported_lies_with_the_results_and_is_removed_also_after_a_failure(
    fails: bool, results: Path, evals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [state] = (results / "state").iterdir()
    left = state / "evaluations" / "100.export" / "model.safetensors.writing"
    left.parent.mkdir(parents=True)
    left.write_text("of an evaluation that was killed")
    seen: list[Path] = []
    score = command.score

    def look(folder: Path, *arguments, **options):
        assert not left.exists()
        assert (folder / "model.safetensors").is_file()
        seen.append(folder)
        if fails:
            raise ValueError("the GPU is away")
        return score(folder, *arguments, **options)

    monkeypatch.setattr(command, "score", look)
    assert run(results, evals) == (2 if fails else 0)
    assert seen
    assert all(folder.is_relative_to(results) for folder in seen)
    assert not [path for path in results.rglob("*") if path.name in ("model.safetensors", "config.json")]


def test_an_evaluation_beside_another_is_refused_and_leaves_the_exported_model_of_that(
    results: Path, evals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after `kill -9` of Snakemake: the job goes on, and the next Snakemake starts it again."""
    [state] = (results / "state").iterdir()
    exported = state / "evaluations" / "100.export" / "config.json"
    lock = StateLock(state / "evaluations")
    exported.parent.mkdir()
    exported.touch()
    assert run(results, evals) == 2
    told = f"evaluations: already being evaluated by process {os.getpid()} on "
    assert told in capsys.readouterr().err
    assert exported.exists()
    lock.release()
    assert run(results, evals) == 0
    assert not exported.exists()


def test_diverged_run_is_evaluated_up_to_its_divergence(results: Path, evals: Path) -> None:
    done = results / "runs" / "test_run" / "0" / "done.json"
    content = json.loads(done.read_text()) | {"status": "diverged", "end_tokens": 150}
    done.write_text(json.dumps(content))
    assert run(results, evals) == 0
    assert {row["tokens"] for row in table(results)} == {"100"}


def _truncate_checkpoint(results: Path) -> None:
    path = next(results.glob("state/*/step_00000003/tensors.safetensors"))
    path.write_bytes(path.read_bytes()[:-100])


def _flip_a_bit_of_a_checkpoint(results: Path) -> None:
    path = next(results.glob("state/*/step_00000003/tensors.safetensors"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _remove_checkpoint(results: Path) -> None:
    for path in next(results.glob("state/*/step_00000003")).iterdir():
        path.unlink()


def _remove_tokenizer(results: Path) -> None:
    (results / "data" / "tokenizer" / "tokenizer.json").unlink()


def _truncate_tokenizer(results: Path) -> None:
    path = results / "data" / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text()[:200])


def _truncate_items(results: Path) -> None:
    path = results / "data" / "evals" / "sum.jsonl"
    path.write_text(path.read_text()[:-9])


def _remove_items(results: Path) -> None:
    (results / "data" / "evals" / "word.jsonl").unlink()


def _untrained(results: Path) -> None:
    (results / "runs" / "test_run" / "0" / "done.json").unlink()


def _truncate_done(results: Path) -> None:
    path = results / "runs" / "test_run" / "0" / "done.json"
    path.write_text(path.read_text()[:10])


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_truncate_checkpoint, "tensors.safetensors"),
        (_flip_a_bit_of_a_checkpoint, "step_00000003/tensors.safetensors: checksum differs"),
        (_flip_a_bit_of_a_checkpoint, "the segment's done.json and train it again"),
        (_remove_checkpoint, "300 tokens"),
        (_remove_tokenizer, "tokenizer.json: missing"),
        (_truncate_tokenizer, "tokenizer"),
        (_truncate_items, "sum.jsonl, line 10"),
        (_remove_items, "word.jsonl: no such evaluation data"),
        (_untrained, "done.json: missing; train the run first"),
        (_truncate_done, "done.json: truncated"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_what_is_missing_or_truncated_is_named_in_one_line(
    spoil, named: str, results: Path, evals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(results)
    assert run(results, evals) == 2
    message = [line for line in capsys.readouterr().err.splitlines() if line.startswith("repro.evaluate: ")]
    assert len(message) == 1, message
    assert named in message[0]
    assert not (results / "evaluations" / "test_run.csv").exists(), "half a table was written"


def test_ctrl_c_ends_in_one_line_and_leaves_no_exported_model(
    results: Path, evals: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "score", _stopped)
    assert run(results, evals) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "repro.evaluate: stopped; run again to go on"
    assert not list(results.glob("state/*/evaluations/*.export"))


def test_what_was_scored_before_a_damaged_checkpoint_stays_scored(results: Path, evals: Path) -> None:
    _truncate_checkpoint(results)
    assert run(results, evals) == 2
    assert [path.name.split("-")[0] for path in results.glob("state/*/evaluations/*.json")] == ["100"]


def test_unknown_run_is_answered_with_the_nearest(
    results: Path, evals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["test_rum", "--results", str(results), "--evals", str(evals)]) == 2
    assert "did you mean 'test_run'?" in capsys.readouterr().err


def test_bad_settings_are_named_with_file_and_key(
    results: Path, evals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evals.write_text(yaml.safe_dump(yaml.safe_load(evals.read_text()) | {"batchsize": 3}))
    assert run(results, evals) == 2
    error = capsys.readouterr().err
    assert str(evals) in error
    assert "did you mean 'batch_size'?" in error
