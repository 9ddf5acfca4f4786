"""Curves of the proxy tier's records by step, as tests of pages that quote them read them."""

from __future__ import annotations

from functools import cache
from statistics import mean

import numpy as np
from readme_text import ROOT

from repro.analysis.record import read_record

RECORDED = ROOT / "recorded" / "proxy"
STEPS = 3072  # of the 12B and 8B stand-ins


@cache
def losses(run: str, text: str = "train") -> dict[int, float]:
    """Step -> loss, of all segments of a run; a fork has its own only."""
    found = {}
    for path in (RECORDED / "runs" / run).glob("*.json.xz"):
        record = read_record(path)
        train = record["train"]
        found |= (
            {train["step"] + i: loss for i, loss in enumerate(train["loss"])}
            if text == "train"
            else {line["step"]: line["loss"] for line in record["validation"]}
        )
    return dict(sorted(found.items()))


def gaps(run: str, base: str, text: str = "train") -> dict[int, float]:
    """Step -> per cent, where both have a loss."""
    own, other = losses(run, text), losses(base, text)
    return {step: 100 * (other[step] - own[step]) / other[step] for step in own if step in other}


def before(values: dict[int, float], end: float) -> float:
    """Mean over the last 2 % of the horizon before `end`."""
    return mean(value for step, value in values.items() if (end - 0.02) * STEPS < step <= end * STEPS + 1e-6)


def steps_late(run: str, base: str) -> dict[int, float]:
    """Step -> how many steps earlier the baseline had the validation loss that the run has there."""
    own, other = losses(run, "validation"), losses(base, "validation")
    steps, values = np.array(list(other)), np.array(list(other.values()))
    falling = np.minimum.accumulate(values)
    return {
        step: step - float(np.interp(-loss, -falling, steps)) for step, loss in own.items() if step > steps[0]
    }
