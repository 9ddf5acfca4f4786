"""What a segment goes on from: its own checkpoint after a stop, its parent's at a fork."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_segment import STEP_TOKENS, freeze

from repro.portable import checkpoint
from repro.portable.finished import load_model, run_checkpoints
from repro.portable.frozen import load_frozen
from repro.portable.metrics import comparable
from repro.portable.position import Position
from repro.portable.trainer import Stopped, Trainer


def trainer_of(path: Path, data_dir: Path, state: Path) -> Trainer:
    torch.set_num_threads(1)
    return Trainer(load_frozen(path), data_dir=data_dir, state_root=state)


def train(path: Path, data_dir: Path, state: Path, should_stop: Callable[[], bool] = lambda: False) -> None:
    trainer = trainer_of(path, data_dir, state)
    try:
        trainer.run(should_stop=should_stop)
    finally:
        trainer.close()


def restored(path: Path, data_dir: Path, state: Path) -> tuple[Position, dict]:
    """Where the segment would go on, and what its watch for divergence has seen."""
    trainer = trainer_of(path, data_dir, state)
    position = trainer.restore()
    trainer.close()
    return position, trainer.watch.state()


def test_the_watch_for_divergence_goes_on_after_a_stop_and_after_a_fork(tmp_path, data_dir):
    first, state = freeze(tmp_path / "run" / "0", end=7), tmp_path / "state"
    with pytest.raises(Stopped):
        train(first, data_dir, state, iter([False] * 5 + [True]).__next__)
    stopped, seen_by_stopped = restored(first, data_dir, state)
    train(first, data_dir, state)
    parent = {"run": "run", "segment": 0, "run_hash": load_frozen(first).run_hash, "tokens": 7 * STEP_TOKENS}
    second = freeze(tmp_path / "run" / "1", start=7, parent=parent)
    forked, seen_by_forked = restored(second, data_dir, state)

    records = comparable((first.parent / "metrics.jsonl").read_text())
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert (stopped.step, seen_by_stopped["recent"]) == (6, losses[1:6])
    assert (forked.step, seen_by_forked["recent"]) == (7, losses[2:7])
    lowest = min(sum(losses[at : at + 5]) / 5 for at in range(3))
    assert seen_by_forked["lowest"] == pytest.approx(lowest)
    assert stopped.seconds > 0
    assert forked.seconds == 0, "the parent's time is not the fork's"


def test_a_finished_run_keeps_its_checkpoints_for_good_alone_and_each_is_loaded_as_it_was(tmp_path, data_dir):
    """One of step 3 was a rolling one."""
    keep = {"every_tokens": 3 * STEP_TOKENS, "keep_last": 2, "keep_tokens": [2 * STEP_TOKENS]}
    path = freeze(tmp_path / "runs" / "run" / "0", end=4, run="run", checkpoints=keep)
    train(path, data_dir, tmp_path / "state")
    state = tmp_path / "state" / load_frozen(path).run_hash
    assert checkpoint.steps(state) == [2, 4]
    points = run_checkpoints(tmp_path, "run")
    models = [load_model(point) for point in points]
    for point, model in zip(points, models, strict=True):
        weights = checkpoint.model_weights(checkpoint.load_at(state, point.tokens)[0])
        assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
        assert not model.training
    assert not torch.equal(models[0].lm_head.weight, models[1].lm_head.weight)


def test_the_speed_of_a_fork_is_that_of_its_own_tokens(tmp_path, data_dir):
    first, state = freeze(tmp_path / "run" / "0", end=6), tmp_path / "state"
    train(first, data_dir, state)
    parent = {"run": "run", "segment": 0, "run_hash": load_frozen(first).run_hash, "tokens": 6 * STEP_TOKENS}
    second = freeze(tmp_path / "run" / "1", start=6, end=8, parent=parent)
    train(second, data_dir, state)
    made_with = json.loads((second.parent / "done.json").read_text())["provenance"]
    tokens = made_with["tokens_per_second"] * made_with["seconds"]
    assert tokens == pytest.approx(2 * STEP_TOKENS, rel=0.1), "seconds are rounded to 1 ms"


def test_a_segment_that_was_killed_after_its_last_checkpoint_ends_with_the_same_record(tmp_path, data_dir):
    """Its last losses are in the checkpoint: no further step tells them."""
    path, state = freeze(tmp_path / "run" / "0", end=3), tmp_path / "state"
    train(path, data_dir, state)
    published, kept = path.parent / "done.json", state / load_frozen(path).run_hash / "done.json"
    before = json.loads(published.read_text())
    published.unlink()
    kept.unlink()
    train(path, data_dir, state)
    after = json.loads(published.read_text())
    for key in ("status", "end_tokens", "final"):
        assert after[key] == before[key], key
    assert None not in before["final"].values()


def test_a_stopped_fork_goes_on_from_its_own_checkpoint_and_not_from_its_parents_again(tmp_path, data_dir):
    first, state = freeze(tmp_path / "run" / "0", end=2), tmp_path / "state"
    train(first, data_dir, state)
    parent = {"run": "run", "segment": 0, "run_hash": load_frozen(first).run_hash, "tokens": 2 * STEP_TOKENS}
    second = freeze(tmp_path / "run" / "1", start=2, end=6, parent=parent)
    with pytest.raises(Stopped):
        train(second, data_dir, state, iter([False, True]).__next__)
    position, _ = restored(second, data_dir, state)
    assert position.step == 4, f"goes on at step {position.step}; it stopped after step 4"
