"""What a kept score belongs to: everything that it depends on, so that no other number is taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.evaluate import kept
from repro.evaluate.kept import Owner
from repro.evaluate.settings import EvalSettings, EvalTask

BENCHMARK = {
    "name": "MMLU", "group": "general", "metric": "acc", "chance": 0.25, "stands_for": "MMLU",
    "harness_tasks": ["mmlu"],
}  # fmt: skip
#: Another value of each field that a score of the benchmark depends on.
OTHERS = {
    "metric": "acc_norm", "filter": "strict", "num_fewshot": 5, "target_delimiter": "", "max_new_tokens": 7,
    "harness_tasks": ["mmlu_pro"], "weighting": "items", "runs_code": True,
}  # fmt: skip
OF_LOCAL_TASKS = {"limit", "template", "data", "context_characters"}


def asked(folder: Path, **changes: object) -> str:
    content = {"name": "t", "source": "-", "dtype": "bfloat16", "batch_size": 8, "max_length_tokens": 64}
    settings = EvalSettings.model_validate({**content, "tasks": [{**BENCHMARK, **changes}]})
    return Owner.of(folder, settings, folder).asked["MMLU"]


def test_every_field_of_a_task_is_either_asked_or_of_tables() -> None:
    of_tables = {"name", "group", "chance", "stands_for", "in_group_mean"}
    assert set(EvalTask.model_fields) == of_tables | OF_LOCAL_TASKS | set(OTHERS)


@pytest.mark.parametrize("field", OTHERS)
def test_a_score_of_a_task_that_is_asked_otherwise_is_another(field: str, tmp_path: Path) -> None:
    assert asked(tmp_path, **{field: OTHERS[field]}) != asked(tmp_path), f"{field} changes nothing"


def test_a_score_of_other_library_versions_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = asked(tmp_path)
    monkeypatch.setattr(kept, "version", lambda name: f"{name} of tomorrow")
    assert asked(tmp_path) != before
