"""When tasks are expected to end: which do not fit, on one GPU and several; leases of the proxy tier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up import rates

from repro.campaign.forecast import expected_ends, expected_minutes, lost_tables
from repro.campaign.leases import load_campaign
from repro.campaign.machine import Machine
from repro.campaign.tasks import Task, chains
from repro.experiments import freeze_all, load

A = Task("a/0", "train", "a", 0, 10, "", ())
A_NEXT = Task("a/1", "train", "a", 1, 10, "", ("a/0",))
B = Task("b/0", "train", "b", 0, 30, "", ())
TABLE = Task("measure:b", "measure", "b", -1, 5, "", ("b/0",))
TASKS = [A, A_NEXT, B, TABLE]


def ends(tasks: list[Task], *, gpus: int = 1, start: float = 0.0, within: float = 1000.0) -> dict[str, float]:
    """With as many seconds a task as it has tokens."""
    known = rates(start_seconds=start / 1.1)
    machine = Machine(gpus=gpus)
    return expected_ends(tasks, {}, machine, known, seconds=lambda task: task.tokens, within=within)


def test_the_longest_chain_comes_first_and_a_table_after_its_run():
    assert ends(TASKS) == {"b/0": 30, "a/0": 40, "a/1": 50, "measure:b": 55}
    assert ends(TASKS, gpus=2) == {"b/0": 30, "a/0": 10, "a/1": 20, "measure:b": 35}


def test_a_start_is_hidden_behind_another_run_but_not_behind_what_is_waited_for():
    assert ends([A, A_NEXT], start=4) == pytest.approx({"a/0": 10, "a/1": 20})
    assert ends([A, B], start=4) == pytest.approx({"b/0": 30, "a/0": 36})


def test_what_does_not_fit_is_not_begun_nor_what_waits_for_it():
    assert ends(TASKS, within=29) == {"a/0": 10, "a/1": 20}
    assert ends([A_NEXT, TABLE], within=20) == {"a/1": 10, "measure:b": 15}, "what is not asked for is done"


def test_the_table_of_a_run_that_fits_is_named_where_it_does_not():
    assert lost_tables(TASKS, ends(TASKS, gpus=2, within=35)) == ""
    assert lost_tables(TASKS, ends(TASKS, gpus=2, within=34)).startswith("NO TIME FOR measure:b,")
    assert lost_tables(TASKS, ends(TASKS, gpus=2, within=29)) == "", "its run is not trained"


def test_the_leases_hold_every_run_of_the_proxy_tier_once(tmp_path):
    plan = load("proxy")
    freeze_all(plan, tmp_path)
    file = load_campaign(Path("configs/campaign/proxy.yaml"))
    named = [run for lease in file.leases.values() for run in (*lease.runs, *lease.then)]
    assert sorted(named) == sorted([*plan.runs, *plan.sweep])
    for lease in file.leases.values():
        tasks, priority = lease.tasks(tmp_path / "runs")
        minutes = expected_minutes(tasks, priority, lease.machine(file.machine), file.new_rates())
        assert 0 < minutes <= file.minutes, lease.name


@pytest.mark.parametrize("gpus", [4, 8])
def test_on_many_gpus_forks_and_tables_do_not_hold_up_the_run_that_they_continue(gpus, tmp_path):
    freeze_all(load("proxy"), tmp_path)
    file = load_campaign(Path("configs/campaign/proxy.yaml"))
    tasks, priority = file.leases["large"].tasks(tmp_path / "runs")
    machine = replace(file.machine, gpus=gpus)
    longest = max(chains(tasks, lambda task: file.new_rates().seconds(task, machine.per_gpu)).values())
    assert expected_minutes(tasks, priority, machine, file.new_rates()) == pytest.approx(longest / 60)
