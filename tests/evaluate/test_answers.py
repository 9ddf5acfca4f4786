"""A benchmark that is stopped again and again ends with the numbers of one that was not, and asks nothing twice."""

from __future__ import annotations

import math
from pathlib import Path

import made_benchmarks
import pytest
from lm_eval.tasks import TaskManager

from repro.evaluate import answers, folder, harness
from repro.evaluate.export import export
from repro.evaluate.folder import Means
from repro.evaluate.kept import answers_folder, read_scores
from repro.evaluate.settings import EvalSettings
from repro.portable.finished import run_checkpoints

ITEMS = 24
#: Answers are drawn out of the questions' bytes by an untrained model: nearly all differ, none is right by design.
GENERATED = {
    "name": "GSM8k / short",
    "harness_tasks": ["gsm8k_cot"],
    "num_fewshot": 0,
    "max_new_tokens": 5,
    "metric": "exact_match",
    "filter": "flexible-extract",
}
CHOSEN = {"name": "PIQA", "harness_tasks": ["piqa"], "metric": "acc_norm"}


@pytest.fixture
def model(results: Path, tmp_path: Path) -> Path:
    point = run_checkpoints(results, "test_run")[-1]
    return export(point, tmp_path / "model", tokenizer_dir=results / "data" / "tokenizer")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> EvalSettings:
    """Two of lm-eval's own benchmarks on made items, two questions a batch and a part, in BF16."""
    import datasets
    import lm_eval.tasks

    def load_dataset(path: str, name: str | None = None, **_: object) -> datasets.DatasetDict:
        [row] = made_benchmarks.rows(path, name)
        column = "question" if "question" in row else "goal"
        items = [{**row, column: f"{'and ' * (i % 5)}{i} + {7 * i}?"} for i in range(ITEMS)]
        return datasets.DatasetDict(
            {split: datasets.Dataset.from_list(items) for split in ("train", "validation", "test")}
        )

    root = Path(lm_eval.tasks.__file__).parent
    own = TaskManager(include_defaults=False, include_path=[str(root / name) for name in ("gsm8k", "piqa")])
    monkeypatch.setattr(harness, "_registry", lambda: own)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(answers, "_BATCHES", dict.fromkeys(answers._BATCHES, 1))
    tasks = [{"group": "math", "chance": 0, "stands_for": "-", **task} for task in (GENERATED, CHOSEN)]
    content = {"name": "t", "source": "-", "dtype": "bfloat16", "batch_size": 2, "max_length_tokens": 64}
    return EvalSettings.model_validate({**content, "tasks": tasks})


class Watched:
    """Loads the model as ever, notes what it answers, and ends at the time limit: after `calls` calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, calls: float = math.inf) -> None:
        self.answered: list[tuple[str, object]] = []
        self._calls, self._load = calls, folder.load_lm
        monkeypatch.setattr(folder, "load_lm", self._loaded)

    def _loaded(self, *arguments: object, **options: object) -> object:
        lm = self._load(*arguments, **options)
        for kind in ("generate_until", "loglikelihood"):
            setattr(lm, kind, self._watch(getattr(lm, kind)))
        return lm

    def _watch(self, ask):
        def watched(requests):
            if not self._calls:
                raise KeyboardInterrupt
            self._calls -= 1
            found = ask(requests)
            self.answered += [(str(r.args), a) for r, a in zip(requests, found, strict=True)]
            return found

        return watched


def score(model: Path, settings: EvalSettings, kept: Path) -> dict[str, harness.Score]:
    return folder.score_folder(model, settings, kept, data_dir=model, means=Means(device="cpu"))


def test_stopped_at_any_place_it_ends_with_the_same_answers_and_asks_nothing_twice(
    model: Path, settings: EvalSettings, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        whole = Watched(patch)
        expected = score(model, settings, tmp_path / "whole.json")
    assert len({str(answer) for _, answer in whole.answered}) > ITEMS, (
        "answers differ, or nothing is seen here"
    )
    kept, answered = tmp_path / "scores.json", []
    for calls in (5, 0, 9, 12, 3):
        with pytest.MonkeyPatch.context() as patch:
            stopped = Watched(patch, calls=calls)
            with pytest.raises(KeyboardInterrupt):
                score(model, settings, kept)
            answered += stopped.answered
    assert set(read_scores(kept)) == {"GSM8k / short"}
    with pytest.MonkeyPatch.context() as patch:
        last = Watched(patch)
        assert score(model, settings, kept) == expected
    assert answered + last.answered == whole.answered
    assert sorted(path.name for path in tmp_path.glob("*scores*")) == ["scores.json"], "answers are left over"


@pytest.mark.parametrize("damage", ["cut off", "empty", "of another number"])
def test_answers_that_were_cut_off_are_asked_again(
    model: Path, settings: EvalSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    kept = tmp_path / "scores.json"
    with pytest.MonkeyPatch.context() as patch:
        first = Watched(patch, calls=3)
        with pytest.raises(KeyboardInterrupt):
            score(model, settings, kept)
    parts = sorted(answers_folder(kept, "GSM8k / short").iterdir())
    assert len(parts) == 3
    text = parts[1].read_text()
    parts[1].write_text({"cut off": text[:-3], "empty": "", "of another number": '["x"]'}[damage])
    again = Watched(monkeypatch)
    score(model, settings, kept)
    in_both = set(first.answered) & set(again.answered)
    assert len(in_both) == 2, "one part of two questions"


def test_answers_of_the_model_that_the_folder_held_before_are_not_taken(
    model: Path, settings: EvalSettings, results: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "scores.json"
    with pytest.MonkeyPatch.context() as patch:
        Watched(patch, calls=3)
        with pytest.raises(KeyboardInterrupt):
            score(model, settings, kept)
    other = run_checkpoints(results, "test_run")[0]
    export(other, model, tokenizer_dir=results / "data" / "tokenizer")
    with pytest.MonkeyPatch.context() as patch:
        watched = Watched(patch)
        score(model, settings, kept)
    assert len(watched.answered) == ITEMS + 2 * ITEMS


def test_a_full_disk_is_not_taken_for_a_missing_benchmark(
    model: Path, settings: EvalSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(answers, "write_whole", full)
    with pytest.raises(OSError, match=r"No space left on device: .*\.answers"):
        score(model, settings, tmp_path / "scores.json")
