"""Clock and power of phases: which reports count, and what runs in a phase."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from repro.bench.machine import Effort, Machine

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import layer_clocks

HELD, FREE = (
    ["1440", "693.2", "700.00", "Active", "Not Active"],
    ["1980", "300.0", "700.00", "Not Active", "Active"],
)


def watch_that_read(*reports: tuple[float, list[str]]) -> layer_clocks.Watch:
    watch = object.__new__(layer_clocks.Watch)
    watch._reports = list(reports)
    return watch


def test_the_reports_of_a_phase_are_those_read_within_it() -> None:
    watch = watch_that_read((0.9, FREE), (1.0, HELD), (1.5, HELD), (1.9, FREE), (2.0, FREE))
    assert watch.between(1.0, 2.0) == {
        "reports": 3,
        "clock_mhz": 1440,
        "power_watts": 693.2,
        "power_limit_watts": 700,
        "share_power_limited": pytest.approx(2 / 3),
        "share_thermally_limited": pytest.approx(1 / 3),
    }


def test_a_card_that_reports_nothing_is_told() -> None:
    with pytest.raises(
        RuntimeError, match=r"nvidia-smi reported nothing within 1\.0 s; does it know \('clocks\.sm'"
    ):
        watch_that_read((0.5, HELD)).between(1.0, 2.0)


def test_a_card_that_does_not_tell_its_power_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"nvidia-smi reports \['1440', '\[N/A\]'"):
        watch_that_read((1.0, ["1440", "[N/A]", "700.00", "Active", "Active"])).between(1.0, 2.0)


def test_a_phase_is_timed_in_its_second_half_and_its_calls_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(torch.device("cpu"), effort=Effort(0.0, min_repeats=1, max_repeats=1))
    found = layer_clocks.phases(machine, (64, 32, 48))
    normal, operands, layer, both = found.values()
    assert both == [*layer, *normal]
    assert len({id(call) for turns in (normal, operands, layer) for call in turns}) == 3

    halves = iter([[3.0, 3.0], [1.0, 2.0]])
    timed, read = [], []
    monkeypatch.setattr(machine, "seconds_in_turn", lambda *turns: timed.append(turns) or next(halves))
    monkeypatch.setattr(layer_clocks.time, "monotonic", lambda: float(len(timed)))
    monkeypatch.setattr(layer_clocks.Watch, "between", lambda watch, *span: read.append(span) or {})
    row = layer_clocks.measure(machine, watch_that_read(), "both", both)
    assert timed == [tuple(both)] * 2
    assert row == {"phase": "both", "milliseconds": [1000.0, 2000.0]}
    assert read == [(1.0, 2.0)], "what is read is of another time than what is timed"


def test_products_are_those_that_the_layer_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(torch.device("cpu"), effort=Effort(0.0, min_repeats=1, max_repeats=1))
    made: list[tuple[object, object]] = []
    floor = layer_clocks.Layers.floor
    monkeypatch.setattr(
        layer_clocks.Layers, "floor", lambda bench, shape: made.append(floor(bench, shape)) or made[-1]
    )
    found = layer_clocks.phases(machine, (64, 32, 48))
    assert [found["products of normal numbers"]] == [[prepared] for _, prepared in made]
