"""Kept scores belong to a model and to settings: others' are refused, and nothing of theirs is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.evaluate import folder as scoring
from repro.evaluate.export import export
from repro.evaluate.folder import Means
from repro.evaluate.harness import Score
from repro.evaluate.kept import Owner, keep_scores
from repro.evaluate.settings import EvalSettings
from repro.portable.finished import run_checkpoints


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"vocab_size": 3}')
    (folder / "model.safetensors").write_bytes(b"weights of A")
    return folder


@pytest.fixture
def kept(model: Path, settings: EvalSettings, items_dir: Path, tmp_path: Path) -> Path:
    """Scores of all tasks of A."""
    path = tmp_path / "scores.json"
    owner = Owner.of(model, settings, items_dir)
    keep_scores(path, {task.name: Score(0.5, 0.1, 4) for task in settings.tasks}, owner)
    return path


@pytest.fixture(autouse=True)
def _no_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "load_lm", lambda *_, **__: pytest.fail("the model was loaded"))
    monkeypatch.setattr(scoring.subprocess, "run", lambda *_, **__: pytest.fail("processes were started"))


def changed(settings: EvalSettings, **task: object) -> EvalSettings:
    """The settings with a changed first task."""
    first, *others = settings.tasks
    return settings.model_copy(update={"tasks": (first.model_copy(update=task), *others)})


def score(
    folder: Path, settings: EvalSettings, kept: Path, items_dir: Path, *, gpus: int = 1
) -> dict[str, Score]:
    return scoring.score(folder, settings, Path("e.yaml"), kept, data_dir=items_dir, means=Means(gpus=gpus))


@pytest.mark.parametrize("gpus", [1, 2])
def test_scores_of_the_model_that_the_folder_held_before_are_refused_and_stay(
    gpus: int, model: Path, settings: EvalSettings, kept: Path, items_dir: Path
) -> None:
    before = kept.read_bytes()
    (model / "model.safetensors").write_bytes(b"weights of B")
    with pytest.raises(ValueError, match=r"scores\.json: keeps scores of another model; name another file"):
        score(model, settings, kept, items_dir, gpus=gpus)
    assert kept.read_bytes() == before


def test_scores_of_another_model_are_refused_also_where_it_is_asked_other_tasks(
    model: Path, settings: EvalSettings, kept: Path, items_dir: Path
) -> None:
    (model / "model.safetensors").write_bytes(b"weights of B")
    with pytest.raises(ValueError, match="scores of another model"):
        score(model, changed(settings, name="new"), kept, items_dir)


def test_scores_made_with_other_settings_or_items_are_refused(
    model: Path, settings: EvalSettings, kept: Path, items_dir: Path
) -> None:
    for other in (settings.model_copy(update={"dtype": "bfloat16"}), changed(settings, limit=3)):
        with pytest.raises(ValueError, match=r"scores\.json: keeps a score of word made with other settings"):
            score(model, other, kept, items_dir)
    items = items_dir / "sum.jsonl"
    items.write_text(items.read_text() + '{"question": "1 + 1 =", "answer": "2"}\n')
    with pytest.raises(ValueError, match=r"scores\.json: keeps a score of sum made with other settings"):
        score(model, settings, kept, items_dir)


def test_a_moved_model_and_what_only_tables_show_change_nothing(
    model: Path, settings: EvalSettings, kept: Path, items_dir: Path, tmp_path: Path
) -> None:
    moved = model.rename(tmp_path / "moved")
    (moved / "README.md").write_text("a note")
    found = score(moved, changed(settings, group="code", chance=0.5, stands_for="-"), kept, items_dir)
    assert set(found) == {"word", "order", "sum"}


def test_a_checkpoint_exported_again_is_the_same_model(
    results: Path, settings: EvalSettings, items_dir: Path, tmp_path: Path
) -> None:
    tokenizer_dir = results / "data" / "tokenizer"
    first, last = run_checkpoints(results, "test_run")[0], run_checkpoints(results, "test_run")[-1]
    folders = [
        export(point, tmp_path / name, tokenizer_dir=tokenizer_dir)
        for point, name in ((first, "a"), (first, "b"), (last, "c"))
    ]
    one, again, other = (Owner.of(folder, settings, items_dir) for folder in folders)
    assert one == again
    assert one.model != other.model


def test_a_file_that_keeps_no_scores_is_not_written_over(
    model: Path, settings: EvalSettings, items_dir: Path
) -> None:
    with pytest.raises(ValueError, match=r"config\.json: not a file of scores"):
        score(model, settings, model / "config.json", items_dir)
    assert (model / "config.json").read_text() == '{"vocab_size": 3}'
