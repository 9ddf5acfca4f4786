"""Where a run stands. Steps and tokens count from the start of the run's lineage: a fork goes on counting."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Position:
    """`seconds`: time trained in this segment, over all restarts. `last`: newest train_loss and validation_loss."""

    step: int
    tokens: int
    seconds: float = 0.0
    last: dict[str, float | None] = field(default_factory=dict)


def crosses(tokens: int, every: int, step_tokens: int) -> bool:
    """Whether the step that ended at `tokens` passed a multiple of `every`."""
    return tokens // every != (tokens - step_tokens) // every
