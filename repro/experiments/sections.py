"""The sections of a frozen run, as they are written (repro.experiments.content) and as trainers check them.

Positions are tokens from the start of the run's lineage. Not here: the sections `model` (repro.experiments.model) and
`recipe` (repro.experiments.recipe).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from repro.experiments.errors import validate
from repro.experiments.record import Record
from repro.experiments.schema import Divergence, Optimizer

_Position = Annotated[int, Field(ge=0)]


class Schedule(Record):
    """Where a segment starts and ends, the size of its steps, and the learning rate of the whole horizon."""

    horizon_tokens: PositiveInt
    start_tokens: _Position
    end_tokens: PositiveInt
    sequence_length_tokens: PositiveInt
    batch_sequences: PositiveInt
    micro_batch_sequences: PositiveInt
    warmup_tokens: _Position
    decay_start_tokens: _Position
    learning_rate_max: PositiveFloat
    learning_rate_min: PositiveFloat
    decay_shape: Literal["linear", "cosine", "minus_sqrt"]


class Phase(Record):
    """Weights of the categories up to a position; they sum to 1."""

    until_tokens: PositiveInt
    blend: dict[str, float]


class Data(Record):
    """Which prepared data, in which order."""

    name: str
    seed: int
    phases: Annotated[list[Phase], Field(min_length=1)]


class ValidationSection(Record):
    """Validation loss on a fixed set of `sequences`."""

    sequences: PositiveInt
    every_tokens: PositiveInt


class CheckpointsSection(Record):
    """For resuming, and those that stay for good."""

    every_tokens: PositiveInt
    keep_last: PositiveInt
    keep_tokens: list[PositiveInt]


class Start(Record):
    """The segment that a segment continues."""

    run: str
    segment: Annotated[int, Field(ge=0)]
    run_hash: str
    tokens: _Position


_SECTIONS: dict[str, type[Record]] = {
    "schedule": Schedule,
    "optimizer": Optimizer,
    "data": Data,
    "validation": ValidationSection,
    "checkpoints": CheckpointsSection,
    "divergence": Divergence,
    "init_from": Start,
}


def check_sections(content: dict[str, Any], where: object) -> None:
    """Raises ValueError naming `where`, the section, the key and the nearest valid one; `init_from` may be None."""
    for name, section in _SECTIONS.items():
        if not (name == "init_from" and content[name] is None):
            validate(section, content[name], f"{where}: {name}", strict=True)
