"""How long leases are expected to take."""

from __future__ import annotations

from pathlib import Path

from repro.campaign.forecast import expected_minutes
from repro.campaign.leases import load_campaign
from repro.experiments import freeze_all, load


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
