"""Runs in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from repro.experiments import load
from repro.experiments.describe import change

CONFIGS = Path(__file__).parents[2] / "configs"


def test_numbers_of_bf16_blocks_that_a_run_gives_are_told_in_words() -> None:
    run = load("tiny", configs_dir=CONFIGS).run("12b_rht4")
    changes = {"bf16_blocks": {"first": 2, "last": 2}, "wgrad.*.hadamard": 4}
    entry = run.derived.entry.model_copy(update={"changes": changes})
    told = change(replace(run, derived=replace(run.derived, entry=entry)))
    assert told == "bf16_blocks: first 2, last 2, wgrad.*.hadamard: 4"
