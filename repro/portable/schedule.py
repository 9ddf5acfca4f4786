"""Learning rate of one step: warm-up, stable, decay (WSD; paper section 3 and Appendix A).

The schedule is a pure function of the token position in the horizon, so a fork or a resumed run needs no state.
The paper states peak, final value and where decay begins; warm-up length and decay shape are not stated there and
come from the frozen run. Not here: the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def learning_rate(tokens: int, schedule: Mapping[str, Any]) -> float:
    """Learning rate for the step that starts at `tokens` (tokens seen before it, >= 0) and ends within the horizon.

    Warm-up rises linearly from one step's share (never 0) to `learning_rate_max`; decay falls from there to
    `learning_rate_min` at `horizon_tokens` along `decay_shape`: "linear", "cosine" or "minus_sqrt"
    (1 - sqrt(progress)). Raises ValueError for an unknown shape.
    """
    peak, floor = schedule["learning_rate_max"], schedule["learning_rate_min"]
    step_tokens = schedule["batch_sequences"] * schedule["sequence_length_tokens"]
    seen = tokens + step_tokens  # the step is rated by the position it reaches
    warmup, decay_start, horizon = (
        schedule["warmup_tokens"],
        schedule["decay_start_tokens"],
        schedule["horizon_tokens"],
    )
    if seen <= warmup:
        return peak * seen / warmup
    if seen <= decay_start:
        return peak
    progress = (seen - decay_start) / (horizon - decay_start)
    shape = schedule["decay_shape"]
    if shape == "linear":
        remaining = 1.0 - progress
    elif shape == "cosine":
        remaining = 0.5 * (1.0 + math.cos(math.pi * progress))
    elif shape == "minus_sqrt":
        remaining = 1.0 - math.sqrt(progress)
    else:
        raise ValueError(f'schedule.decay_shape is "{shape}"; known shapes: linear, cosine, minus_sqrt')
    return floor + (peak - floor) * remaining
