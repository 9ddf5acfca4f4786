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


def test_every_phase_is_timed_and_calls_of_one_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        layer_clocks.Watch, "between", lambda watch, start, end: {"read_seconds": end - start}
    )
    machine = Machine(torch.device("cpu"), effort=Effort(0.0, min_repeats=1, max_repeats=1))
    found = layer_clocks.phases(machine, (64, 32, 48))
    assert [len(turns) for turns in found.values()] == [1, 1, 1, 2]
    assert (
        len({id(call) for turns in found.values() for call in turns}) == 3
    )  # the two in turn are the two alone
    row = layer_clocks.measure(machine, watch_that_read(), "both", found["NVFP4 layer and products in turn"])
    assert len(row["milliseconds"]) == 2
    assert 0 < sum(row["milliseconds"]) <= 1000 * row["read_seconds"]
