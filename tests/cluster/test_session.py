"""A segment through the stand-in of megatron-core's loop: records, checkpoints, forks, stops, divergence."""

import json
import math
import shutil
import sys

import pytest
from session_run import done, metrics, run
from small import STEP_TOKENS, FakeLoop, World, fake_megatron, freeze, training_module

from repro.cluster import entry, recorder, state
from repro.cluster.session import Session
from repro.portable.metrics import comparable


@pytest.fixture(autouse=True)
def _argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["repro.cluster"])


def test_a_whole_segment_leaves_metrics_and_done_in_the_portable_format(tmp_path, monkeypatch):
    segment = freeze(tmp_path / "run")
    status, loop, world = run(segment, tmp_path / "state", monkeypatch)
    lines = metrics(segment)
    steps = [line for line in lines if line["kind"] == "train"]
    assert status == "completed"
    assert [line["step"] for line in steps] == list(range(1, 21))
    assert steps[0]["tokens"] == STEP_TOKENS
    assert steps[0]["loss"] == 4.0
    assert {line["learning_rate"] for line in steps} == {0.5}, "the rate of the step, not the next one's"
    validations = [line for line in lines if line["kind"] == "validation"]
    assert [line["step"] for line in validations] == [5, 10, 15, 20], "once at the end, although asked twice"
    assert validations[0]["loss"] == 2.5
    assert validations[0]["loss_by_category"] == {"code": 3.0, "prose": 2.0}
    record = done(segment)
    assert record["final"] == {"train_loss": pytest.approx(3.81), "validation_loss": 2.5}
    assert (record["end_tokens"], record["num_parameters"]) == (20 * STEP_TOKENS, 5)
    assert record["precision"] == ["ran"], "what ran, not what was asked for"
    assert world.calls[0] == ("argv", ["--train-iters", "20"])
    assert loop.calls[:2] == ["before", "after"], "proven before step 1 and after it"


def test_the_keys_are_those_of_the_portable_trainer(tmp_path, monkeypatch):
    from small import portable

    from repro.portable.frozen import load_frozen
    from repro.portable.trainer import Trainer

    theirs = portable.freeze(tmp_path / "theirs", recipe="bf16")
    trainer = Trainer(
        load_frozen(theirs), data_dir=portable.write_data(tmp_path / "data"), state_root=tmp_path / "state"
    )
    trainer.run()
    ours = freeze(tmp_path / "ours")
    run(ours, tmp_path / "state", monkeypatch)

    def shape(folder):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        record = json.loads((folder / "done.json").read_text())
        return [(line["kind"], line.get("step"), list(line)) for line in lines], list(record)

    assert shape(ours.path.parent) == shape(theirs.parent)


def test_checkpoints_for_forks_and_evaluations_are_saved_at_their_step_and_stay(tmp_path, monkeypatch):
    checkpoints = {
        "every_tokens": 3 * STEP_TOKENS,
        "keep_last": 2,
        "keep_tokens": [7 * STEP_TOKENS, 9 * STEP_TOKENS],
    }
    segment = freeze(tmp_path / "run", checkpoints=checkpoints)
    _, _, world = run(segment, tmp_path / "state", monkeypatch)
    assert [step for what, step in world.calls if what == "save"] == [3, 6, 7, 9, 12, 15, 18, 20]
    assert state.complete_steps(tmp_path / "state" / segment.run_hash) == [7, 9, 20]


def test_a_stopped_segment_goes_on_where_it_saved_and_its_record_is_that_of_an_undisturbed_one(
    tmp_path, monkeypatch
):
    plain, broken = freeze(tmp_path / "plain"), freeze(tmp_path / "broken")
    run(plain, tmp_path / "a", monkeypatch)
    status, _, _ = run(broken, tmp_path / "b", monkeypatch, signal_at=11)
    assert status == "stopped"
    assert not (broken.path.parent / "done.json").exists()
    start = state.find_start(broken, tmp_path / "b")
    assert (start.step, start.resumed, start.folders.load) == (11, True, tmp_path / "b" / broken.run_hash)
    run(broken, tmp_path / "b", monkeypatch)
    text = [(s.path.parent / "metrics.jsonl").read_text() for s in (plain, broken)]
    assert comparable(text[0]) == comparable(text[1])
    assert done(broken)["final"] == done(plain)["final"]


def test_a_kill_between_checkpoint_and_its_mark_goes_back_one_checkpoint(tmp_path, monkeypatch):
    segment = freeze(tmp_path / "run")
    run(segment, tmp_path / "state", monkeypatch, signal_at=11)
    own = tmp_path / "state" / segment.run_hash
    (own / "step_00000011" / "meta.json").unlink()
    assert state.find_start(segment, tmp_path / "state").step == 9
    run(segment, tmp_path / "state", monkeypatch)
    steps = [line["step"] for line in metrics(segment) if line["kind"] == "train"]
    assert steps == list(range(1, 21)), "lines past the checkpoint were cut off and written again"


def test_a_mark_whose_checkpoint_is_gone_is_not_looked_at(tmp_path, monkeypatch):
    segment = freeze(tmp_path / "run")
    run(segment, tmp_path / "state", monkeypatch, signal_at=11)
    shutil.rmtree(tmp_path / "state" / segment.run_hash / "iter_0000011")
    assert state.find_start(segment, tmp_path / "state").step == 9


@pytest.mark.parametrize("damage", ["cut off", "gone"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, monkeypatch, caplog, damage):
    segment, own = freeze(tmp_path / "run"), tmp_path / "state"
    run(segment, own, monkeypatch, signal_at=11)
    file = own / segment.run_hash / "iter_0000011" / "__0_0.distcp"
    file.write_bytes(b"tens") if damage == "cut off" else file.unlink()
    with caplog.at_level("INFO", logger="repro.cluster"):
        assert state.find_start(segment, own).step == 9
    assert "damaged checkpoint left out" in caplog.text, "repro.workflow.launch looks for these words"
    run(segment, own, monkeypatch)
    steps = [line["step"] for line in metrics(segment) if line["kind"] == "train"]
    assert steps == list(range(1, 21))


@pytest.mark.parametrize(
    ("signal_at", "every", "at"), [(5, 5, [5, 10, 15, 20]), (20, 5, [5, 10, 15, 20]), (20, 7, [7, 14, 20])]
)
def test_a_stop_beside_a_validation_repeats_and_loses_nothing(tmp_path, monkeypatch, signal_at, every, at):
    segment = freeze(tmp_path / "run", validation={"sequences": 8, "every_tokens": every * STEP_TOKENS})
    run(segment, tmp_path / "state", monkeypatch, signal_at=signal_at)
    if not recorder.is_done(segment, tmp_path / "state"):
        run(segment, tmp_path / "state", monkeypatch)
    validations = [line["step"] for line in metrics(segment) if line["kind"] == "validation"]
    assert validations == at


@pytest.mark.parametrize("bad", [math.nan, math.inf, 9.0])
def test_divergence_is_a_result_without_a_checkpoint_of_it(tmp_path, monkeypatch, bad):
    segment = freeze(tmp_path / "run")

    def loss(step):
        return bad if step >= 8 else 4.0

    tries = [run(segment, tmp_path / "state", monkeypatch, loss=loss)]
    if not math.isfinite(bad):
        tries.append(run(segment, tmp_path / "state", monkeypatch, loss=loss))
    *first, (status, _, world) = tries
    assert [once for once, _, _ in first] == ["again"] * (not math.isfinite(bad)), (
        "a value that is not finite, once"
    )
    assert status == "diverged"
    last = metrics(segment)[-1]
    assert (last["kind"], last["event"]) == ("event", "diverged")
    assert last["step"] < 20
    assert done(segment)["end_tokens"] == last["tokens"]
    assert all(step < last["step"] for what, step in world.calls if what == "save")
    assert (tmp_path / "state" / segment.run_hash / "diverged").exists()


def test_a_step_that_is_not_finite_once_is_trained_again_and_leaves_no_trace(tmp_path, monkeypatch):
    """A GPU that fails in silence must not end a run of weeks as diverged; one fault does not excuse the next."""
    plain, hit = freeze(tmp_path / "plain"), freeze(tmp_path / "hit")
    run(plain, tmp_path / "a", monkeypatch)
    usual = World(plain, tmp_path).loss
    for fault in (2, 8, 10):
        losses = {fault: math.nan}
        faulty = {"loss": lambda step, losses=losses: losses.get(step, usual(step))}
        status, _, world = run(hit, tmp_path / "b", monkeypatch, **faulty)
        assert status == "again", fault
        assert ("step", fault + 1) not in world.calls
    assert run(hit, tmp_path / "b", monkeypatch)[0] == "completed"
    text = [(s.path.parent / "metrics.jsonl").read_text() for s in (plain, hit)]
    assert comparable(text[0]) == comparable(text[1])
    assert not (tmp_path / "b" / hit.run_hash / "diverged").exists()


def test_a_gradient_norm_that_is_not_finite_counts_too(tmp_path, monkeypatch):
    segment = freeze(tmp_path / "run")
    start = state.find_start(segment, tmp_path / "state")
    world = World(segment, tmp_path / "state" / segment.run_hash)
    world.grad_norm = lambda step: math.nan if step == 3 else 1.0
    training, loop = training_module(world), FakeLoop()
    fake_megatron(monkeypatch, training)
    session = Session(segment, loop, recorder.Recorder(segment, tmp_path / "state", start), start)
    entry.pretrain(session, loop, [])
    assert session.has_diverged
    assert session.step == 4


def test_a_process_that_does_not_write_leaves_the_loop_with_the_others(tmp_path, monkeypatch):
    segment = freeze(tmp_path / "run")

    class Told(FakeLoop):
        def tell(self, flag):
            assert flag is False, "only the writing process knows"
            return training.world.calls[-1] == ("step", 6)

    training = training_module(World(segment, tmp_path / "state"))
    fake_megatron(monkeypatch, training)
    session = Session(segment, Told(), None)
    entry.pretrain(session, session.loop, [])
    assert session.has_diverged
    assert session.step == 7


def test_a_fork_starts_from_its_parents_checkpoint_and_goes_on_counting(tmp_path, monkeypatch):
    parent = freeze(tmp_path / "parent", end=8)
    run(parent, tmp_path / "state", monkeypatch)
    link = {"run": "parent", "segment": 0, "run_hash": parent.run_hash, "tokens": 8 * STEP_TOKENS}
    child = freeze(tmp_path / "child", start=8, parent=link, recipe="bf16")
    start = state.find_start(child, tmp_path / "state")
    assert (start.step, start.resumed) == (8, False)
    assert (start.folders.load, start.folders.load_step) == (tmp_path / "state" / parent.run_hash, 8)
    run(child, tmp_path / "state", monkeypatch)
    assert [line["step"] for line in metrics(child) if line["kind"] == "train"] == list(range(9, 21))


def test_a_fork_without_its_parents_checkpoint_is_an_error_that_names_it(tmp_path):
    link = {"run": "parent", "segment": 0, "run_hash": "0123456789abcdef", "tokens": 8 * STEP_TOKENS}
    child = freeze(tmp_path / "child", start=8, parent=link)
    with pytest.raises(ValueError, match="no complete checkpoint at step 8 of parent segment 0"):
        state.find_start(child, tmp_path / "state")


def test_a_fork_of_a_damaged_checkpoint_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    parent = freeze(tmp_path / "parent", end=8)
    run(parent, tmp_path / "state", monkeypatch)
    (tmp_path / "state" / parent.run_hash / "iter_0000008" / "__0_0.distcp").write_bytes(b"")
    link = {"run": "parent", "segment": 0, "run_hash": parent.run_hash, "tokens": 8 * STEP_TOKENS}
    child = freeze(tmp_path / "child", start=8, parent=link)
    with pytest.raises(ValueError, match=r"iter_0000008/__0_0\.distcp has 0 bytes, not 7"):
        state.find_start(child, tmp_path / "state")


def test_the_watch_for_divergence_travels_to_forks(tmp_path, monkeypatch):
    parent = freeze(tmp_path / "parent", end=8)
    run(parent, tmp_path / "state", monkeypatch, loss=lambda step: 1.0)
    link = {"run": "parent", "segment": 0, "run_hash": parent.run_hash, "tokens": 8 * STEP_TOKENS}
    child = freeze(tmp_path / "child", start=8, parent=link)
    status, _, _ = run(child, tmp_path / "state", monkeypatch, loss=lambda step: 4.0)
    assert status == "diverged", "4 nats are far above the parent's 1"


def test_trial_16_another_precision_in_the_first_step_stops_the_run(tmp_path, monkeypatch):
    segment, loop = freeze(tmp_path / "run"), FakeLoop()
    loop.bad_after = True
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mixer\.in_proj"):
        run(segment, tmp_path / "state", monkeypatch, loop=loop)


def test_a_megatron_whose_functions_are_others_is_refused(tmp_path):
    segment = freeze(tmp_path / "run")
    training = training_module(World(segment, tmp_path))
    del training.checkpoint_and_decide_exit
    with pytest.raises(ValueError, match=r"no training\.checkpoint_and_decide_exit"):
        Session(segment, FakeLoop(), None).install(training)
    training = training_module(World(segment, tmp_path))
    training.training_log = lambda losses, iteration, grad_norm: None
    with pytest.raises(ValueError, match=r"training\.training_log has no parameter loss_dict"):
        Session(segment, FakeLoop(), None).install(training)


def test_a_second_process_that_wants_to_write_is_refused(tmp_path):
    segment = freeze(tmp_path / "run")
    start = state.find_start(segment, tmp_path)
    first = recorder.Recorder(segment, tmp_path, start)
    with pytest.raises(ValueError, match="already being trained"):
        recorder.Recorder(segment, tmp_path, start)
    first._lock.release()


def test_trial_15_a_damaged_mark_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    segment = freeze(tmp_path / "run")
    run(segment, tmp_path / "state", monkeypatch, signal_at=11)
    path = tmp_path / "state" / segment.run_hash / "step_00000011" / "meta.json"
    path.write_text(path.read_text()[:30])
    with pytest.raises(ValueError, match="step_00000011"):
        state.find_start(segment, tmp_path / "state")


def test_other_data_than_before_is_an_error(tmp_path):
    segment, data = freeze(tmp_path / "run"), tmp_path / "data"
    data.mkdir()
    with pytest.raises(ValueError, match=r"manifest\.json: no manifest; prepare the data first"):
        recorder.check_data(segment, tmp_path / "state", data, note=True)
    (data / "manifest.json").write_text('{"schema": 1, "number": 1}')
    recorder.check_data(segment, tmp_path / "state", data, note=True)
    recorder.check_data(segment, tmp_path / "state", data, note=False)
    (data / "manifest.json").write_text('{"schema": 1, "number": 2}')
    with pytest.raises(ValueError, match="move the folder away"):
        recorder.check_data(segment, tmp_path / "state", data, note=True)
