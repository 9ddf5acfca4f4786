"""Checkpoints: complete or absent, damage is found and named, the one before it is used."""

import json
import multiprocessing
import os
import signal

import pytest
import torch

from repro.portable import checkpoint


def tensors(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"model.w": torch.full((8, 8), value), "exp_avg.w": torch.zeros(8, 8)}


def write(folder, step: int, value: float = 1.0):
    return checkpoint.save(
        folder, tensors(value), {"step": step, "tokens": 100 * step, "run_hash": "abc", "metrics_bytes": 0}
    )


def test_round_trip_keeps_bits(tmp_path):
    value = {"model.w": torch.tensor([1.0, -0.0, 1e-45, 3.4e38])}
    checkpoint.save(tmp_path, value, {"step": 3, "tokens": 300, "run_hash": "abc"})
    loaded, meta = checkpoint.load(tmp_path / "step_00000003", run_hash="abc")
    assert torch.equal(loaded["model.w"].view(torch.int32), value["model.w"].view(torch.int32))
    assert meta["tokens"] == 300


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-10])


def _flip_byte(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def _empty(path):
    path.write_bytes(b"")


def _list(path):
    path.write_bytes(b"[]")


@pytest.mark.parametrize("damage", [_truncate, _flip_byte, lambda path: path.unlink(), _empty, _list])
@pytest.mark.parametrize("name", ["tensors.safetensors", "meta.json"])
def test_damage_is_named_and_the_checkpoint_before_is_used(tmp_path, damage, name):
    write(tmp_path, 1, 1.0)
    damage(write(tmp_path, 2, 2.0) / name)
    found, problems = checkpoint.load_newest(tmp_path, run_hash="abc")
    assert found[1]["step"] == 1
    assert len(problems) == 1
    assert "step_00000002" in problems[0]


def test_trial_15_a_nan_weight_fails_loudly(tmp_path):
    checkpoint.save(
        tmp_path, {"model.w": torch.tensor([1.0, float("nan")])}, {"step": 1, "tokens": 1, "run_hash": "abc"}
    )
    with pytest.raises(checkpoint.CheckpointError, match=r"model\.w holds a non-finite value"):
        checkpoint.load(tmp_path / "step_00000001")


def test_an_infinite_moment_fails_as_loudly(tmp_path):
    moments = {"model.w": torch.ones(2), "exp_avg_sq.w": torch.tensor([1.0, float("inf")])}
    checkpoint.save(tmp_path, moments, {"step": 1, "tokens": 1, "run_hash": "abc"})
    with pytest.raises(checkpoint.CheckpointError, match=r"exp_avg_sq\.w holds a non-finite value"):
        checkpoint.load(tmp_path / "step_00000001")


def test_another_runs_checkpoint_is_refused(tmp_path):
    folder = write(tmp_path, 1)
    with pytest.raises(checkpoint.CheckpointError, match="belongs to run abc, not def"):
        checkpoint.load(folder, run_hash="def")


def test_missing_fork_point_lists_what_is_there(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 4)
    with pytest.raises(
        checkpoint.CheckpointError, match=r"no checkpoint at 300 tokens \(there are: \[100, 400\]\)"
    ):
        checkpoint.load_at(tmp_path, 300)


def test_a_damaged_note_is_no_fork_point(tmp_path):
    _list(write(tmp_path, 3) / "meta.json")
    with pytest.raises(checkpoint.CheckpointError, match="no checkpoint at 300 tokens"):
        checkpoint.load_at(tmp_path, 300)


def test_a_copy_beside_the_checkpoints_is_none(tmp_path):
    write(tmp_path, 3).with_name("step_00000003.bak").mkdir()
    (tmp_path / "step_old").mkdir()
    assert checkpoint.steps(tmp_path) == [3]


def test_a_full_disk_leaves_the_earlier_checkpoint_and_no_debris(tmp_path, monkeypatch):
    write(tmp_path, 1)

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]


def test_prune_keeps_the_newest_and_the_fork_points(tmp_path):
    for step in range(1, 8):
        write(tmp_path, step)
    checkpoint.prune(tmp_path, keep_last=2, keep_steps=[3])
    assert checkpoint.steps(tmp_path) == [3, 6, 7]


def test_at_the_end_prune_keeps_the_fork_points_alone(tmp_path):
    for step in range(1, 4):
        write(tmp_path, step)
    checkpoint.prune(tmp_path, keep_last=0, keep_steps=[2])
    assert checkpoint.steps(tmp_path) == [2]


def _hold(folder, ready):
    lock = checkpoint.StateLock(folder)
    ready.set()
    signal.pause()
    lock.release()


def test_a_second_trainer_is_refused_and_a_killed_one_frees_the_lock(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, ready))
    holder.start()
    assert ready.wait(20)
    with pytest.raises(ValueError, match=f"already being trained by process {holder.pid}"):
        checkpoint.StateLock(tmp_path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    checkpoint.StateLock(tmp_path).release()


def test_model_weights_have_the_models_names(tmp_path):
    write(tmp_path, 2, 5.0)
    tensors, meta = checkpoint.load_at(tmp_path, 200)
    assert list(checkpoint.model_weights(tensors)) == ["w"]
    assert meta["step"] == 2
    assert json.loads((tmp_path / "step_00000002" / "meta.json").read_text())["sha256"]
