"""Scoring one Hugging Face folder: what is kept, what is refused, and what several GPUs are started with."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from repro.evaluate import folder as scoring
from repro.evaluate.folder import Means
from repro.evaluate.harness import Score, score_tasks
from repro.evaluate.kept import read_scores
from repro.evaluate.loading import load_lm
from repro.evaluate.settings import EvalSettings

BENCHMARKS = [
    {"name": name, "group": "math", "metric": "acc", "chance": 0, "stands_for": "-", "harness_tasks": [name]}
    for name in ("first", "second", "third")
]
CODE = {**BENCHMARKS[0], "name": "HumanEval+", "runs_code": True}


def settings_of(*tasks: dict, **changes) -> EvalSettings:
    content = {"name": "t", "source": "-", "dtype": "bfloat16", "batch_size": 1, "max_length_tokens": 8}
    return EvalSettings.model_validate({**content, "tasks": list(tasks), **changes})


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the benchmarks that were scored; "second" fails while `harness` says so."""
    scored: list[str] = []

    def score(lm, tasks, **_) -> dict[str, Score]:
        if scored == ["first"] and tasks[0].name == "second":
            scored.append("failure")
            raise ValueError("the hub is away")
        scored.extend(task.name for task in tasks)
        return {task.name: Score(0.5, 0.1, 4) for task in tasks}

    monkeypatch.setattr(scoring, "load_lm", lambda *_, **__: object())
    monkeypatch.setattr(scoring, "score_tasks", score)
    return scored


def test_an_evaluation_that_broke_off_goes_on_with_the_benchmark_that_is_missing(
    harness: list[str], tmp_path: Path
) -> None:
    kept = tmp_path / "scores.json"
    with pytest.raises(ValueError, match="the hub is away"):
        scoring.score_folder(tmp_path, settings_of(*BENCHMARKS), kept, data_dir=tmp_path, means=Means())
    assert set(read_scores(kept)) == {"first"}
    scores = scoring.score_folder(tmp_path, settings_of(*BENCHMARKS), kept, data_dir=tmp_path, means=Means())
    assert harness == ["first", "failure", "second", "third"]
    assert scores == read_scores(kept)
    assert set(scores) == {"first", "second", "third"}


def test_scores_that_were_cut_off_while_written_are_made_again(harness: list[str], tmp_path: Path) -> None:
    kept = tmp_path / "scores.json"
    kept.write_text('{"first": {"value"')
    scoring.score_folder(tmp_path, settings_of(BENCHMARKS[0]), kept, data_dir=tmp_path, means=Means())
    assert harness == ["first"]


def test_model_written_code_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "load_lm", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(ValueError, match=r"HumanEval\+: runs code .*allow_code_execution=true"):
        scoring.score_folder(
            tmp_path, settings_of(CODE), tmp_path / "s.json", data_dir=tmp_path, means=Means()
        )


def test_another_version_of_lm_eval_is_refused(harness: list[str], tmp_path: Path) -> None:
    settings = settings_of(BENCHMARKS[0], lm_eval="0.4.1")
    with pytest.raises(ValueError, match=r"settings of t are for 0\.4\.1: .*pip install lm-eval==0\.4\.1"):
        scoring.score_folder(tmp_path, settings, tmp_path / "s.json", data_dir=tmp_path, means=Means())
    assert not harness


def test_only_the_first_of_several_processes_has_scores(
    tmp_path: Path, settings: EvalSettings, items_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm_eval.evaluate", lambda **_: None)
    assert score_tasks(object(), settings.tasks, data_dir=items_dir) == {}
    monkeypatch.setattr(scoring, "load_lm", lambda *_, **__: object())
    assert (
        scoring.score_folder(tmp_path, settings, tmp_path / "s.json", data_dir=items_dir, means=Means()) == {}
    )
    assert not (tmp_path / "s.json").exists()


def test_several_gpus_are_processes_of_accelerate_that_write_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> subprocess.CompletedProcess:
        commands.append(command)
        (tmp_path / "s.json").write_text(json.dumps({"first": {"value": 0.5, "stderr": 0.1, "num_items": 4}}))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(scoring.subprocess, "run", run)
    evals = tmp_path / "e.yaml"
    evals.write_text(yaml.safe_dump(settings_of(CODE).model_dump(mode="json")))
    arguments = [str(tmp_path), "--evals", str(evals), "--out", str(tmp_path / "s.json"), "--gpus", "4"]
    arguments += ["--data", str(tmp_path / "items")]
    assert scoring.main(arguments) == 2, "the code was not allowed"
    assert not commands
    evals.write_text(yaml.safe_dump(settings_of(BENCHMARKS[0]).model_dump(mode="json")))
    assert scoring.main([*arguments, "--allow-code-execution"]) == 0
    [command] = commands
    assert command[1:3] == ["-m", "accelerate.commands.launch"]
    assert command[command.index("--num_processes") + 1] == "4"
    assert command[command.index("-m", 3) + 1] == "repro.evaluate.folder"
    assert command[-3:] == ["--data", str(tmp_path / "items"), "--allow-code-execution"]
    from accelerate.commands.launch import launch_command_parser

    parsed = launch_command_parser().parse_args(command[3:])
    assert (parsed.num_processes, parsed.module, parsed.training_script) == (4, True, "repro.evaluate.folder")


def test_failed_processes_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        scoring.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1)
    )
    with pytest.raises(ValueError, match="on 2 GPUs ended with exit code 1"):
        scoring.score(
            tmp_path,
            settings_of(BENCHMARKS[0]),
            tmp_path / "e.yaml",
            tmp_path / "s.json",
            data_dir=tmp_path,
            means=Means(gpus=2),
        )


def test_an_engine_that_is_not_installed_is_named(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm"):
        pytest.skip("vllm is installed")
    with pytest.raises(ValueError, match=r"engine vllm: .*needs vllm"):
        load_lm(tmp_path, settings_of(BENCHMARKS[0], engine="vllm"))


def test_vllm_does_not_run_local_tasks() -> None:
    local = {key: value for key, value in BENCHMARKS[0].items() if key != "harness_tasks"}
    with pytest.raises(ValueError, match=r"vllm does not run local tasks \(first\)"):
        settings_of({**local, "template": "multiple_choice", "data": "x.jsonl"}, engine="vllm")


def test_the_command_prints_a_line_a_task(tmp_path: Path, results: Path, evals: Path, capsys) -> None:
    from repro.evaluate.export import export
    from repro.portable.finished import run_checkpoints

    model = tmp_path / "model"
    export(run_checkpoints(results, "test_run")[-1], model, tokenizer_dir=results / "data" / "tokenizer")
    arguments = [str(model), "--evals", str(evals), "--out", str(tmp_path / "s.json")]
    assert scoring.main([*arguments, "--data", str(results / "data" / "evals")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["word", "order", "sum"]
    assert set(read_scores(tmp_path / "s.json")) == {"word", "order", "sum"}
