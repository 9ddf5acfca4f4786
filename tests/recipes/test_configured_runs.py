"""The runs of configs/experiments train what the tests of this folder observed."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_variants import VARIANTS

from repro.experiments.derive import Derived, derive_all
from repro.experiments.errors import read_mapping, validate
from repro.experiments.model import load_model_spec
from repro.experiments.schema import Tier

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def runs() -> dict[str, Derived]:
    tier_file = CONFIGS / "tiers" / "paper.yaml"
    families = ("12b", "8b", "1p2b")
    models = {family: load_model_spec(CONFIGS / f"models/paper/{family}.yaml") for family in families}
    return derive_all(CONFIGS, validate(Tier, read_mapping(tier_file), tier_file), models)


def test_every_run_is_observed(runs: dict[str, Derived]) -> None:
    assert {run.name for run in runs.values() if run.entry.replica_of is None} == set(VARIANTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_run_has_the_recipe_that_was_observed(name: str, runs: dict[str, Derived]) -> None:
    trained = runs[name].recipe.model_dump(exclude={"name"})
    observed = VARIANTS[name].recipe().model_dump(exclude={"name"})
    assert trained == observed
