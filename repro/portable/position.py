"""Where a run stands. Steps and tokens count from the start of the run's lineage: a fork goes on counting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Position:
    """`seconds`: time trained in this segment, over all restarts; `data_seconds`: of it, the wait for samples.

    `last`: newest train_loss and validation_loss.
    """

    step: int
    tokens: int
    seconds: float = 0.0
    last: dict[str, float | None] = field(default_factory=dict)
    data_seconds: float = 0.0

    @classmethod
    def saved(cls, meta: dict[str, Any]) -> Self:
        """What a checkpoint's `meta` holds; one written before waits were counted says nothing of them."""
        waited = meta.get("data_seconds", 0.0)
        return cls(meta["step"], meta["tokens"], meta["seconds"], meta["last"], waited)


def crosses(tokens: int, every: int, step_tokens: int) -> bool:
    """Whether the step that ended at `tokens` passed a multiple of `every`."""
    return tokens // every != (tokens - step_tokens) // every
