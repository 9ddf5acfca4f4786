"""How calls are timed: alone, in turn, in blocks; what the machine says of itself."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable

import pytest
import torch

from repro.bench.machine import Effort, Machine, Prepared
from repro.bench.report import header


def test_a_median_is_of_the_calls_alone_and_a_first_call_does_not_count(monkeypatch) -> None:
    clock = iter([0.0, 1.0, 10.0, 12.0, 20.0, 29.0])
    monkeypatch.setattr("repro.bench.machine.time.perf_counter", lambda: next(clock))
    calls = []
    machine = Machine(torch.device("cpu"), effort=Effort(0.0, 3, 3))
    assert machine.seconds(calls.append) == 2.0
    assert calls == [0, 0, 1, 2]


def _recorded_calls(effort: Effort) -> tuple[Machine, list[str], list[Prepared]]:
    """A machine, the names of the calls made on it, and two prepared calls."""
    machine = Machine(torch.device("cpu"), effort=effort)
    called: list[str] = []
    prepared = [machine.prepare(lambda _, name=name: called.append(name)) for name in "ab"]
    assert called == ["a", "b"]
    called.clear()
    return machine, called, prepared


@pytest.mark.parametrize(
    ("load", "cores", "threads", "busy"),
    [(0.2, 2, 2, False), (1.0, 2, 2, True), (1.0, 8, 2, False), (7.0, 8, 2, True)],
)
def test_a_machine_that_does_other_work_says_so(load, cores, threads, busy, monkeypatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    said = Machine(torch.device("cpu")).busy
    assert bool(said) == busy
    facts = {"device": "d", "threads": 1, "versions": {}, "emulation": "e", "busy": said}
    assert (f"load {load} on {cores} cores" in header(facts)) == busy


def test_calls_in_turn_alternate() -> None:
    machine, called, prepared = _recorded_calls(Effort(0.0, 3, 3))
    machine.seconds_in_turn(*prepared)
    assert called == ["a", "b"] * 3


def test_a_call_in_blocks_is_alone_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that follows itself takes 1 s, one that follows the other 3 s: only the former is to be seen."""
    machine, called, prepared = _recorded_calls(Effort(40.0, 1, 99))

    def clocked(call: Callable[[], object]) -> float:
        call()
        return 1.0 if called[-2:] in (["a", "a"], ["b", "b"]) else 3.0

    monkeypatch.setattr(machine, "_clocked", clocked)
    assert machine.seconds_in_blocks(*prepared) == [1.0, 1.0]
    blocks = [name for name, _ in itertools.groupby(called)]
    assert blocks == ["a", "b"] * 4
    assert machine.seconds_in_turn(*prepared) == [3.0, 3.0]


@pytest.mark.parametrize("way", [Machine.seconds_in_turn, Machine.seconds_in_blocks])
def test_what_slows_both_calls_down_leaves_their_ratio(way, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that gets slower with every call, as it warms up: one after the other would be 1 : 2.3."""
    machine = Machine(torch.device("cpu"), effort=Effort(0.0, 7, 7))
    number = iter(range(100))
    monkeypatch.setattr(machine, "_clocked", lambda call: 1.0 + 0.2 * next(number))
    first, second = way(machine, Prepared(print, 1), Prepared(print, 1))
    assert 1 < second / first < 1.2


_ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=_ON_GPU)])
def test_what_a_prepared_call_reads_stays(device: str) -> None:
    """A CUDA graph knows addresses only: memory that was given back by then is another's, or nobody's."""

    def prepare() -> tuple[weakref.ref, Prepared]:
        x = torch.ones(1000, device=device)
        return weakref.ref(x), Machine(torch.device(device), effort=Effort(0.0, 1, 1)).prepare(
            lambda _: x + 1
        )

    read, prepared = prepare()
    gc.collect()
    assert read() is not None
    prepared.run(0)


@pytest.mark.parametrize(
    ("device", "words"),
    [("cuda:99", "CUDA GPU"), ("meta", "knows cpu and cuda")],
)
def test_a_device_that_is_not_there_is_refused(device: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Machine(torch.device(device))


def test_a_cpus_copy_ceiling_is_its_best_copy(monkeypatch) -> None:
    """What else the machine does slows most copies; the fastest says what memory can do."""
    machine = Machine(torch.device("cpu"))
    machine.__dict__["matrix_size"] = 8
    seconds = iter([0.5, 0.5, 0.02, 0.4] + [0.5] * 100)
    monkeypatch.setattr(machine, "_clocked", lambda call: next(seconds))
    assert machine.copy_rate == pytest.approx(2 * 2 * 8 * 8 / 0.02)
