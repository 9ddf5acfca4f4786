"""Runs in words: what a run is made of, how two runs differ. Plain strings; drawing tables is the command line's.

Everything said here is read off the plan, so that a list can't disagree with what is trained.
"""

from __future__ import annotations

from repro.experiments.golden import overall
from repro.experiments.operand_rule import OperandRule
from repro.experiments.plan import Plan
from repro.experiments.recipe import GEMM_OPERANDS
from repro.experiments.run import Run

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(value: float) -> str:
    """A count with a unit letter and three digits: 6.03M."""
    for size, letter in _UNITS:
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def duration(hours: float) -> str:
    """A time in the unit that reads best."""
    if hours < 1 / 60:
        return f"{3600 * hours:.2g} s"
    return f"{60 * hours:.2g} min" if hours < 1 else f"{hours:,.3g} h" if hours < 1000 else f"{hours:,.0f} h"


def origin(run: Run) -> str:
    """Where a run starts: a recipe, another run, or another run's checkpoint."""
    entry = run.derived.entry
    if entry.replica_of:
        return f"{entry.replica_of}, seed {run.seed}"
    if entry.base:
        start = f"recipe {entry.base}"
    elif run.parent:
        start = f"{run.parent} at {100 * run.derived.fork_at:g} %"
    else:
        start = f"{entry.parent}, from the start"
    if entry.horizon:
        start += f", horizon x {entry.horizon:g}"
    return start if run.derived.end_at == 1.0 else f"{start}, to {100 * run.derived.end_at:g} %"


def change(run: Run) -> str:
    """What the run's file changes against its origin."""
    entry = run.derived.entry
    parts = [f"{key}: {_in_words(value)}" for key, value in entry.changes.items()]
    if entry.recipe:
        parts.insert(0, f"recipe: {entry.recipe}")
    if entry.bf16_blocks:
        counts = run.recipe.bf16_blocks
        parts.append(f"BF16 blocks: {run.derived.bf16_blocks} (first {counts.first}, last {counts.last})")
    return ", ".join(parts) or "-"


def _in_words(value: object) -> str:
    """A value of `changes`; one with keys of its own as `first 2, last 2`."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_in_words(part)}" for key, part in value.items())
    return str(value)


def rule_in_words(rule: OperandRule) -> str:
    """One operand in a few words: nvfp4 1d sr hadamard 16 fixed."""
    if rule.format == "bf16":
        return "bf16"
    words = [rule.format, rule.blocks, rule.rounding]
    if rule.hadamard:
        words.append(f"hadamard {rule.hadamard} {rule.signs}")
    if rule.scale_order != "te":
        words.append(f"{rule.scale_order} scale order")
    return " ".join(words)


def recipe_rows(run: Run) -> list[tuple[str, str, str]]:
    """(GEMM, operand, rule in words) of all six operands."""
    return [
        (gemm, operand, rule_in_words(run.recipe.rule(gemm, operand)))
        for gemm, operands in GEMM_OPERANDS.items()
        for operand in operands
    ]


def difference(plan_a: Plan, a: str, plan_b: Plan, b: str) -> list[tuple[str, str, str]]:
    """Resolved keys that differ, as (key, value in a, value in b); "-" where a run has no such key.

    Raises ValueError for an unknown run, naming the nearest.
    """
    left, right = overall(plan_a.run(a)), overall(plan_b.run(b))
    keys = dict.fromkeys((*left, *right))
    return [(key, left.get(key, "-"), right.get(key, "-")) for key in keys if left.get(key) != right.get(key)]
