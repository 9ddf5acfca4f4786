"""The benchmarks of configs/evals/paper.yaml as the installed lm-eval has them, run on made items."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import made_benchmarks
import pytest
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from repro.evaluate import harness
from repro.evaluate.settings import EvalTask, load_settings

CONFIG = Path(__file__).parents[2] / "configs" / "evals" / "paper.yaml"
SETTINGS = load_settings(CONFIG)
#: Folders of lm-eval's tasks that hold Table 2's; looking through all of them takes longer.
FOLDERS = (
    "mmlu", "mmlu_pro", "agieval", "gsm8k", "minerva_math", "global_mmlu", "mgsm", "humaneval", "mbpp", "arc",
    "hellaswag", "openbookqa", "piqa", "winogrande",
)  # fmt: skip
#: What a benchmark of generated text wants to read at the end of an answer.
ANSWERS = {
    "MATH": "Final Answer: The final answer is $18$. I hope it is correct.",
    "MATH 500": "Final Answer: The final answer is $18$. I hope it is correct.",
    "MMLU-Pro 5-shot": "the answer is (B).",
    "ARC Challenge": " B",
    "HumanEval+": "    return 2 * x\n",
}
PART = {"MMLU": "mmlu_anatomy"}


@pytest.fixture(scope="module")
def registry() -> TaskManager:
    import lm_eval.tasks

    root = Path(lm_eval.tasks.__file__).parent
    return TaskManager(include_defaults=False, include_path=[str(root / folder) for folder in FOLDERS])


def test_the_settings_are_for_the_installed_lm_eval() -> None:
    assert SETTINGS.lm_eval is not None
    harness.check_version(SETTINGS)


@pytest.mark.parametrize("task", SETTINGS.tasks, ids=lambda task: task.name)
def test_every_task_is_in_the_installed_lm_eval(task: EvalTask, registry: TaskManager) -> None:
    missing = [name for name in task.harness_tasks if name not in registry.all_tasks]
    assert not missing, f"{task.name}: lm-eval has no {missing}"


def _is_right(question: str, choice: str) -> bool:
    if choice.strip() == "is green.":  # Winogrande: two beginnings, one end
        return question.endswith("leaf")
    return choice.strip() in ("B", "green", "(B) green")


class Student(LM):
    """Answers every question right, or every one wrong."""

    def __init__(self, *, right: bool, answer: str) -> None:
        super().__init__()
        self.right, self.answer = right, answer

    def loglikelihood(self, requests):
        return [(0.0 if _is_right(*request.args) == self.right else -9.0, False) for request in requests]

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError

    def generate_until(self, requests):
        return [self.answer for _ in requests]


def made_items(task: EvalTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets and the metric that runs code are the tests' own: neither a network nor a sandbox is needed."""
    import datasets
    import evaluate

    if task.metric == "math_verify":
        pytest.importorskip("math_verify", reason="MATH needs lm-eval[math]")
    monkeypatch.setattr(datasets, "load_dataset", made_benchmarks.load_dataset)
    monkeypatch.setattr(evaluate, "load", lambda *_: made_benchmarks.CodeEval())


def score(
    task: EvalTask, registry: TaskManager, monkeypatch: pytest.MonkeyPatch, *, right: bool
) -> harness.Score:
    made_items(task, monkeypatch)
    monkeypatch.setattr(harness, "_registry", lambda: registry)
    answer = ANSWERS.get(task.name, "def f(x): return 2 * x" if task.runs_code else "So it is 18.")
    student = Student(right=right, answer=answer if right else "I do not know, 7.")
    with contextlib.redirect_stderr(io.StringIO()):
        scores = harness.score_tasks(student, [task], data_dir=Path(), allow_code_execution=task.runs_code)
    return scores[task.name]


@pytest.mark.parametrize("task", SETTINGS.tasks, ids=lambda task: task.name)
def test_no_generated_answer_ends_where_lm_eval_would_by_default_and_all_end_where_the_task_says(
    task: EvalTask, registry: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_items(task, monkeypatch)
    part = task.model_copy(update={"harness_tasks": (PART.get(task.name, task.harness_tasks[0]),)})
    found = registry.load(harness._specs(registry, part, Path()))["tasks"]
    stated = registry.load(list(part.harness_tasks))["tasks"]
    for name, item in found.items():
        if item.get_config("output_type") != "generate_until":
            continue
        as_stated = stated[name].get_config("generation_kwargs")
        given = item.get_config("generation_kwargs")
        assert given["max_gen_toks"] == (task.max_new_tokens or as_stated["max_gen_toks"]), name
        assert {**given, "max_gen_toks": None} == {**as_stated, "max_gen_toks": None}, name


@pytest.mark.parametrize(("num_fewshot", "shown"), [(None, 8), (0, 0), (3, 3)])
def test_a_question_comes_after_as_many_examples_as_the_settings_say_which_may_be_none(
    num_fewshot: int | None, shown: int, registry: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval states eight for GSM8k with a chain of thought."""
    [task] = (task for task in SETTINGS.tasks if task.name == "GSM8k CoT")
    asked = []
    monkeypatch.setattr(
        Student, "generate_until", lambda _, requests: [asked.append(r.args[0]) or "18." for r in requests]
    )
    score(task.model_copy(update={"num_fewshot": num_fewshot}), registry, monkeypatch, right=True)
    assert {question.count("Q: ") for question in asked} == {shown + 1}


def test_a_limit_of_answers_is_refused_where_nothing_is_generated(
    registry: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    [task] = (task for task in SETTINGS.tasks if task.name == "PIQA")
    made_items(task, monkeypatch)
    with pytest.raises(
        ValueError, match="PIQA: `max_new_tokens` is for generated answers; lm-eval's piqa has"
    ):
        harness._specs(registry, task.model_copy(update={"max_new_tokens": 9}), Path())


@pytest.mark.parametrize("task", SETTINGS.tasks, ids=lambda task: task.name)
def test_a_student_who_knows_scores_one_and_who_does_not_scores_nought(
    task: EvalTask, registry: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Languages are alike, and so are MMLU's 57 subjects; fewer examples, for the time.
    changes = {"num_fewshot": None if task.num_fewshot is None else 2}
    changes["harness_tasks"] = (PART.get(task.name, task.harness_tasks[0]),)
    task = task.model_copy(update=changes)
    knows = score(task, registry, monkeypatch, right=True)
    assert knows.value == pytest.approx(1.0), f"{task.name}: metric {task.metric}, filter {task.filter}"
    assert knows.num_items >= 6
    assert score(task, registry, monkeypatch, right=False).value < 0.2
