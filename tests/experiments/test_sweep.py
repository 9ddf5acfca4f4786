"""The declared learning rate sweep: runs of their own, apart from the plan's, that differ by the rate alone."""

from pathlib import Path

import pytest
import yaml

from repro.experiments import freeze_all, load
from repro.experiments.sweep import sweep_run_name


@pytest.fixture(scope="module")
def plan():
    return load("proxy")


def test_every_family_has_a_run_of_each_rate_and_none_belongs_to_the_plan(plan):
    rates = plan.spec.sweep.learning_rates
    assert set(rates) == set(plan.models)
    assert list(plan.sweep) == [sweep_run_name(family, rate) for family in rates for rate in rates[family]]
    assert not set(plan.sweep) & set(plan.runs)


def test_two_rates_of_a_family_differ_in_the_rate_alone(plan):
    one, other = (
        dict(plan.sweep[sweep_run_name("8b", rate)].segments[0].frozen)
        for rate in plan.spec.sweep.learning_rates["8b"][:2]
    )
    differing = {key for key in one if one[key] != other[key]}
    assert differing == {"run", "schedule", "run_hash"}
    schedules = (
        {key: value for key, value in content["schedule"].items() if not key.startswith("learning_rate")}
        for content in (one, other)
    )
    assert len({str(schedule) for schedule in schedules}) == 1


def test_a_sweep_run_keeps_the_weights_data_order_and_shares_of_its_family(plan):
    run = plan.sweep[sweep_run_name("12b", 2e-3)].segments[0].frozen
    family = plan.runs["12b_fp8"].segments[0].frozen
    for key in ("model", "seed", "optimizer", "divergence"):
        assert run[key] == family[key]
    assert run["data"]["seed"] == family["data"]["seed"]
    assert run["schedule"]["decay_start_tokens"] / run["schedule"]["horizon_tokens"] == pytest.approx(0.8)


def test_the_rates_of_a_sweep_run_keep_the_ratio_of_its_family(plan):
    for family, rates in plan.spec.sweep.learning_rates.items():
        settings = plan.spec.families[family]
        for rate in rates:
            name = sweep_run_name(family, rate)
            schedule = plan.sweep[name].segments[0].frozen["schedule"]
            assert schedule["learning_rate_max"] == rate, name
            found = schedule["learning_rate_min"] / rate
            assert found == pytest.approx(settings.learning_rate_min / settings.learning_rate_max), name


def test_a_sweep_run_has_the_seed_of_its_tier(configs):
    configs.edit("tiers/proxy.yaml", "\nseed: 1", "\nseed: 7")
    assert {run.segments[0].frozen["seed"] for run in configs.load("proxy").sweep.values()} == {7}


def test_the_sweep_is_frozen_with_the_plan(plan, tmp_path: Path):
    freeze_all(plan, tmp_path)
    path = tmp_path / "runs" / sweep_run_name("1p2b", 4e-3) / "0" / "run.yaml"
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["schedule"]["learning_rate_max"] == 4e-3


def test_a_tier_without_a_sweep_has_no_such_runs():
    assert load("tiny").sweep == {}
