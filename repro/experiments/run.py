"""One run of a tier and its segments, as the workflow, the trainer and the tables look at them. Plain records.

A segment is one training job: it starts at the run's beginning, at a fork or at the end of the segment before, and
ends where somebody else forks or where the run ends. Tokens count from the start of the run's lineage.

Not here: how fractions become tokens (repro.experiments.cut), how a run derives (repro.experiments.derive).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repro.experiments.derive import Derived
from repro.experiments.recipe import Recipe
from repro.experiments.schema import Resources


@dataclass(frozen=True)
class Segment:
    """One training job. Tokens count from the start of the run's lineage; `parent` = (run, segment) it continues."""

    run: str
    index: int
    start_tokens: int
    end_tokens: int
    frozen: Mapping[str, Any]
    run_hash: str
    parent: tuple[str, int] | None
    resources: Resources

    @property
    def folder(self) -> str:
        """Below results/<tier>/."""
        return f"runs/{self.run}/{self.index}"

    @property
    def num_tokens(self) -> int:
        return self.end_tokens - self.start_tokens


@dataclass(frozen=True)
class Run:
    """One run of the paper at this tier. `horizon_tokens` is its schedule's; a fork starts late or stops early."""

    derived: Derived
    horizon_tokens: int
    step_tokens: int
    segments: tuple[Segment, ...]
    evaluation_tokens: tuple[int, ...]
    measure_tokens: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.derived.name

    @property
    def family(self) -> str:
        return self.derived.family

    @property
    def recipe(self) -> Recipe:
        return self.derived.recipe

    @property
    def parent(self) -> str | None:
        """The run that this one continues from a fork point; None when it trains from the start."""
        return self.derived.parent

    @property
    def replica_of(self) -> str | None:
        return self.derived.entry.replica_of

    @property
    def seed(self) -> int:
        return self.derived.seed

    @property
    def label(self) -> str:
        """Series name; influences no number."""
        return self.derived.entry.label or self.name

    @property
    def elements(self) -> tuple[str, ...]:
        return self.derived.entry.elements

    @property
    def claims(self) -> tuple[str, ...]:
        return self.derived.entry.claims

    @property
    def start_tokens(self) -> int:
        return self.segments[0].start_tokens

    @property
    def end_tokens(self) -> int:
        return self.segments[-1].end_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens that this run trains itself (a fork: without its parent's)."""
        return self.end_tokens - self.start_tokens
