"""configs/evals: what is refused, and that the files in the repository are sound."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from repro.evaluate.settings import EvalSettings, load_settings

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "evals"

TABLE_2 = {
    "general": ["MMLU", "MMLU-Pro 5-shot", "AGIEval English"],
    "math": ["GSM8k CoT", "MATH"],
    "multilingual": ["Global MMLU", "MGSM"],
    "code": ["HumanEval+", "MBPP+"],
    "commonsense": ["ARC Challenge", "HellaSwag", "OpenBookQA", "PIQA", "Winogrande"],
}


@pytest.mark.parametrize("tier", ["tiny", "proxy", "paper"])
def test_every_tier_has_tasks_in_every_group_of_the_paper_and_evaluates_in_bf16(tier: str) -> None:
    settings = load_settings(CONFIGS / f"{tier}.yaml")
    assert {task.group for task in settings.tasks} == set(TABLE_2)
    assert settings.dtype == "bfloat16", "the paper: evaluations are done in BF16"


def test_paper_tier_has_the_rows_of_table_2_and_only_they_make_the_group_means() -> None:
    tasks = load_settings(CONFIGS / "paper.yaml").tasks
    for group, names in TABLE_2.items():
        assert [task.name for task in tasks if task.group == group and task.in_group_mean] == names
    assert {task.name for task in tasks if task.runs_code} == {"HumanEval+", "MBPP+"}


def _task(**fields) -> dict:
    return {"name": "t", "group": "math", "metric": "acc", "chance": 0.25, "stands_for": "-", **fields}


LOCAL = {"template": "multiple_choice", "data": "t.jsonl"}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (_task(), "needs either `template` and `data`"),
        (_task(**LOCAL, harness_tasks=["mmlu"]), "needs either `template` and `data`"),
        (_task(template="multiple_choice"), "`template` and `data` go together"),
        (_task(template="generate", data="t.jsonl"), "`max_new_tokens` belongs to template `generate`"),
        (_task(**LOCAL, max_new_tokens=3), "`max_new_tokens` belongs to template `generate`"),
        (_task(harness_tasks=["mgsm_de"], max_new_tokens=0), "max_new_tokens"),
        (_task(harness_tasks=["mgsm_de"], max_new_tokens=8), "t: `max_new_tokens` 8 leaves no room"),
        (_task(harness_tasks=["mgsm_de"], max_new_token=3), "did you mean 'max_new_tokens'?"),
        (_task(**LOCAL, context_characters=3), "`context_characters` belongs to template `word_order`"),
        (_task(harness_tasks=["mmlu"], limit=3), "`limit` is for local tasks"),
        (_task(**LOCAL, num_fewshot=3), "`num_fewshot` is for lm-eval's tasks"),
        (_task(**LOCAL, chance=1.0), "chance"),
        (_task(**(LOCAL | {"template": "multiple_choise"})), "did you mean 'multiple_choice'?"),
        (_task(**LOCAL, group="maths"), "did you mean 'math'?"),
        (_task(**LOCAL, chanse=0.1), "did you mean 'chance'?"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused_in_words(task: dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / "evals.yaml"
    settings = {"name": "x", "source": "-", "dtype": "float32", "batch_size": 1, "max_length_tokens": 8}
    path.write_text(yaml.safe_dump({**settings, "tasks": [task]}))
    with pytest.raises(ValueError, match=r"evals\.yaml") as caught:
        load_settings(path)
    assert message in str(caught.value)


def test_two_tasks_of_one_name_are_refused() -> None:
    settings = {"name": "x", "source": "-", "dtype": "float32", "batch_size": 1, "max_length_tokens": 8}
    with pytest.raises(ValueError, match="'t' is there 2 times"):
        EvalSettings.model_validate({**settings, "tasks": [_task(**LOCAL), _task(**LOCAL)]})
