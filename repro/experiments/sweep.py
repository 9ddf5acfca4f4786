"""Short BF16 runs that choose a tier's learning rates: one for each family and rate of `sweep` in the tier's file.

They are declared and frozen like any run and belong to no element: `plan.runs` does not hold them, so that the
workflow trains them only when they are asked for by name. Each has the family's model, blend, batch and shares of the
horizon; its horizon and learning rate are the sweep's. The smallest learning rate keeps its ratio to the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from repro.experiments.cut import cut_run
from repro.experiments.data_spec import DataSpec
from repro.experiments.derive import Derived
from repro.experiments.library import Library
from repro.experiments.model import ModelSpec
from repro.experiments.run import Run
from repro.experiments.schema import RunEntry, Tier


def sweep_run_name(family: str, learning_rate: float) -> str:
    """Name of one run of the sweep: 8b_rate_2em3 for 2.0e-3."""
    digits, _, exponent = f"{learning_rate:.3e}".partition("e")
    return f"{family}_rate_{digits.rstrip('0').rstrip('.').replace('.', 'p')}em{abs(int(exponent))}"


def sweep_runs(
    spec: Tier, *, data: DataSpec, models: Mapping[str, ModelSpec], configs_dir: Path
) -> dict[str, Run]:
    """The runs of the tier's sweep by name; empty for a tier without one."""
    if spec.sweep is None:
        return {}
    tier_file = configs_dir / "tiers" / f"{spec.tier}.yaml"
    recipe = Library(configs_dir / "recipes").recipe("bf16", where=f"{tier_file}: sweep")
    runs = {}
    for family, rates in spec.sweep.learning_rates.items():
        settings = spec.families[family]
        ratio = settings.learning_rate_min / settings.learning_rate_max
        for rate in rates:
            name = sweep_run_name(family, rate)
            own = settings.model_copy(
                update={
                    "horizon_tokens": spec.sweep.horizon_tokens,
                    "learning_rate_max": rate,
                    "learning_rate_min": rate * ratio,
                    "validation": settings.validation.model_copy(update={"every": 0.25}),
                    "checkpoints": settings.checkpoints.model_copy(update={"every": 1.0}),
                }
            )
            derived = Derived(
                name=name,
                family=family,
                file=tier_file,
                entry=RunEntry(base="bf16", bf16_blocks="none", label=f"BF16, learning rate {rate:g}"),
                recipe=recipe,
                base="bf16",
                bf16_blocks="none",
                horizon_factor=1.0,
                parent=None,
                fork_at=0.0,
                end_at=1.0,
                seed=spec.seed,
            )
            runs[name] = cut_run(
                derived,
                {name: derived},
                {},
                spec=spec.model_copy(update={"families": {**spec.families, family: own}}),
                data=data,
                model=models[family],
                tier_file=tier_file,
            )
    return runs
