"""How long each step waited for samples, through the stand-in of megatron-core's loop."""

import json
import sys

import pytest
from session_run import done, metrics, run
from small import FakeLoop, freeze


@pytest.fixture(autouse=True)
def _argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["repro.cluster"])


class WaitingLoop(FakeLoop):
    """Waits a quarter of a second, so it says, in every step and in every validation."""

    def loss(self, step):
        self.waited_seconds += 0.25
        return 4.0

    def validate(self, model, config, step):
        self.waited_seconds += 0.25
        return super().validate(model, config, step)


def test_the_wait_for_samples_of_every_step_is_told_and_goes_on_counting_after_a_stop(tmp_path, monkeypatch):
    segment, loop = freeze(tmp_path / "run"), WaitingLoop()
    run(segment, tmp_path / "state", monkeypatch, loop=loop, loss=loop.loss, signal_at=11)
    loop = WaitingLoop()
    run(segment, tmp_path / "state", monkeypatch, loop=loop, loss=loop.loss)
    steps = [line for line in metrics(segment) if line["kind"] == "train"]
    assert [line["data_seconds"] for line in steps] == [0.25] * 20, "a validation's wait is no step's"
    assert done(segment)["provenance"]["data_seconds"] == 20 * 0.25


def test_a_checkpoint_from_before_waits_were_counted_is_resumed(tmp_path, monkeypatch):
    segment, loop = freeze(tmp_path / "run"), WaitingLoop()
    run(segment, tmp_path / "state", monkeypatch, loop=loop, loss=loop.loss, signal_at=11)
    path = tmp_path / "state" / segment.run_hash / "step_00000011" / "meta.json"
    meta = json.loads(path.read_text())
    assert meta.pop("data_seconds") == 11 * 0.25
    path.write_text(json.dumps(meta))
    loop = WaitingLoop()
    run(segment, tmp_path / "state", monkeypatch, loop=loop, loss=loop.loss)
    assert done(segment)["provenance"]["data_seconds"] == 9 * 0.25
