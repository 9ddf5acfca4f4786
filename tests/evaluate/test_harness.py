"""What comes out of lm-eval: scores of a model that knows the answers, of one that does not, and refusals."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from lm_eval.api.model import LM

from repro.evaluate.harness import Score, mean_score, read_score, score_tasks
from repro.evaluate.settings import EvalSettings, EvalTask


class Oracle(LM):
    """Says what it is told: a log-probability for (question, choice), a text for a question."""

    def __init__(self, likes, writes) -> None:
        super().__init__()
        self.likes, self.writes = likes, writes

    def loglikelihood(self, requests):
        return [(self.likes(*request.args), False) for request in requests]

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError

    def generate_until(self, requests):
        return [self.writes(request.args[0]) for request in requests]


CHOICES = ["the cat sat down", "a dog ran far", "no bird sang here", "two fish swam off"]


def knows(question: str, choice: str) -> float:
    """Likes the right choice of `word.jsonl` and of its word orders: the number in the question says which."""
    number = int(question.split()[1].rstrip("."))
    return 0.0 if choice.strip() == CHOICES[number % 4] else -1.0


def adds(question: str) -> str:
    return f" {int(question.split()[0]) + 1}\n and more"


def test_a_model_that_knows_every_answer_scores_one_on_every_template(
    items_dir: Path, settings: EvalSettings
) -> None:
    scores = score_tasks(Oracle(knows, adds), settings.tasks, data_dir=items_dir)
    assert scores == {
        "word": Score(1.0, 0.0, 20),
        "order": Score(1.0, 0.0, 20),
        "sum": Score(1.0, 0.0, 10),
    }


def test_a_model_that_always_takes_the_first_choice_scores_chance(
    items_dir: Path, settings: EvalSettings
) -> None:
    scores = score_tasks(
        Oracle(lambda *_: 0.0, lambda _: "none"), [settings.tasks[0], settings.tasks[2]], data_dir=items_dir
    )
    assert scores["word"] == Score(0.25, pytest.approx(math.sqrt(0.25 * 0.75 / 19)), 20)
    assert scores["sum"].value == 0.0


@pytest.mark.parametrize(
    ("written", "right"),
    [(" 3", True), ("3.", True), (" = 3, of course", True), ("33", False), ("-3", False)],
)
def test_generated_answer_is_the_first_number_or_word(
    written: str, right: bool, tmp_path: Path, settings: EvalSettings
) -> None:
    (tmp_path / "sum.jsonl").write_text('{"question": "2 + 1 =", "answer": "3"}\n' * 2)
    scores = score_tasks(Oracle(knows, lambda _: written), settings.tasks[2:], data_dir=tmp_path)
    assert scores["sum"].value == float(right)


def test_code_is_not_run_without_being_allowed(items_dir: Path) -> None:
    task = EvalTask(
        name="HumanEval+",
        group="code",
        metric="pass@1",
        chance=0.0,
        stands_for="-",
        harness_tasks=("humaneval_plus",),
        runs_code=True,
    )
    with pytest.raises(
        ValueError, match=r"HumanEval\+: runs code that the model wrote.*--allow-code-execution"
    ):
        score_tasks(Oracle(knows, adds), [task], data_dir=items_dir)


BENCHMARK = {
    "results": {
        "mgsm_de": {"exact_match,flexible-extract": 0.5, "exact_match_stderr,flexible-extract": 0.03},
        "mgsm_fr": {"exact_match,flexible-extract": 0.7, "exact_match_stderr,flexible-extract": 0.04},
        "mmlu": {"acc,none": 0.4, "acc_stderr,none": 0.01, "sample_len": 1000},
    },
    "groups": {"mmlu": {"acc,none": 0.4, "acc_stderr,none": 0.01, "sample_len": 1000}},
    "n-samples": {
        "mgsm_de": {"original": 100, "effective": 100},
        "mgsm_fr": {"original": 300, "effective": 300},
    },
}


def _benchmark(**fields) -> EvalTask:
    return EvalTask(
        **{"name": "x", "group": "math", "metric": "exact_match", "chance": 0, "stands_for": "-", **fields}
    )


def test_several_benchmarks_are_averaged_plainly_or_by_items() -> None:
    task = {"harness_tasks": ("mgsm_de", "mgsm_fr"), "filter": "flexible-extract"}
    plain = read_score(BENCHMARK, _benchmark(**task))
    assert plain == Score(pytest.approx(0.6), pytest.approx(0.025), 400)
    weighted = read_score(BENCHMARK, _benchmark(**task, weighting="items"))
    assert weighted.value == pytest.approx(0.65)
    assert weighted.stderr == pytest.approx(math.hypot(0.25 * 0.03, 0.75 * 0.04))


def test_a_score_without_an_error_has_none_rather_than_zero() -> None:
    """lm-eval writes "N/A" where it knows none."""
    found = {"acc,none": 0.5, "acc_stderr,none": "N/A"}
    results = {"results": {"one": found}, "n-samples": {"one": {"effective": 10}}}
    score = read_score(results, _benchmark(harness_tasks=("one",), metric="acc"))
    assert (score.value, score.num_items) == (0.5, 10)
    assert math.isnan(score.stderr)


def test_a_group_of_lm_eval_is_read_as_a_whole() -> None:
    assert read_score(BENCHMARK, _benchmark(harness_tasks=("mmlu",), metric="acc")) == Score(0.4, 0.01, 1000)


def test_a_metric_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="has no metric 'acc,none'; it has exact_match,flexible-extract"):
        read_score(BENCHMARK, _benchmark(harness_tasks=("mgsm_de",), metric="acc"))


def test_group_mean_has_the_error_of_independent_tasks() -> None:
    got = mean_score([Score(0.2, 0.03, 10), Score(0.6, 0.04, 30)])
    assert got == Score(pytest.approx(0.4), pytest.approx(0.025), 40)
