"""The meaning of configs/: typed records of models, recipes, data, runs and tiers; plans; frozen runs. No torch.

plan = load("tiny")                      # every run of the tier, cut into segments
freeze_all(plan, "results/tiny")         # one run.yaml a segment, written only where it differs
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Looked up when first used: a trainer that wants repro.experiments.recipe alone does not pay for the plan.
_HOME = {
    "load": "plan",
    "Plan": "plan",
    "Run": "run",
    "Segment": "run",
    "freeze_all": "freeze",
    "frozen_text": "freeze",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
