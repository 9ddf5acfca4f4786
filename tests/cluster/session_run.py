"""A segment through the stand-in of megatron-core's loop, in one process, and what it leaves; not a test itself."""

import json

from small import FakeLoop, World, fake_megatron, training_module

from repro.cluster import entry, recorder, state
from repro.cluster.session import Session


def run(segment, state_root, monkeypatch, *, loop=None, **changes):
    """One process from start to end; returns (status, "stopped" or "again", loop, world)."""
    start = state.find_start(segment, state_root)
    world = World(segment, state_root / segment.run_hash, start=start.step, **changes)
    training, loop = training_module(world), loop or FakeLoop()
    fake_megatron(monkeypatch, training)
    writer = recorder.Recorder(segment, state_root, start)
    session = Session(segment, loop, writer, start)
    try:
        stopped = entry.pretrain(session, loop, ["--train-iters", "20"])
    finally:
        writer._lock.release()
    if stopped and not session.has_diverged:
        return "stopped", loop, world
    if session.reason:
        if writer.trains_again(session.step):
            return "again", loop, world
        writer.diverged(session.step, session.reason)
    writer.finish(
        "diverged" if session.has_diverged else "completed",
        session.step,
        num_parameters=5,
        precision=session.precision,
        made_with={"versions": {}},
    )
    return recorder.publish(segment, state_root), loop, world


def metrics(segment):
    return [json.loads(line) for line in (segment.path.parent / "metrics.jsonl").read_text().splitlines()]


def done(segment):
    return json.loads((segment.path.parent / "done.json").read_text())
