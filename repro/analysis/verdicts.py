"""The words of a verdict: the record, the size of what was compared, and how far a tier reaches.

Does not: decide (repro.analysis.rules, repro.analysis.orders), read files, or choose tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from repro.analysis.claims_file import Claim

# Not measurable (at this size): our numbers are there, the runs are too small or too short to show the statement.
# Not measured: runs, a number or hardware are missing.
REPRODUCED, CONTRADICTED, UNRESOLVED, NOT_MEASURABLE, NOT_MEASURED = (
    "reproduced",
    "contradicted",
    "unresolved",
    "not measurable",
    "not measured",
)
VERDICTS = (REPRODUCED, CONTRADICTED, UNRESOLVED, NOT_MEASURABLE, NOT_MEASURED)


@dataclass(frozen=True)
class Verdict:
    """One line of the claims table; `paper` and `ours` are words with numbers, `numbers` the same for programs."""

    claim: str
    element: str
    kind: str
    statement: str
    paper: str
    ours: str
    verdict: str
    reason: str
    tier: str
    numbers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.verdict in VERDICTS, self.verdict

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Scale:
    """Size of what was compared: the smallest model and the fewest tokens among the runs."""

    tier: str
    parameters: int
    tokens: int
    unrecorded: tuple[str, ...] = ()  # runs of the comparison that no record holds, with the reason

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.parameters if self.parameters else 0.0


@dataclass(frozen=True)
class Reach:
    """The least scale that can show a statement, and why."""

    because: str
    parameters: float = 0
    tokens: float = 0
    tokens_per_parameter: float = 0

    def missing(self, scale: Scale) -> str:
        """What the scale lacks, in words; "" when it is within reach."""
        lacks = []
        if self.missing_model(scale):
            lacks.append(f"{human(scale.parameters)} of at least {human(self.parameters)} parameters")
        if scale.tokens < self.tokens:
            lacks.append(f"{human(scale.tokens)} of at least {human(self.tokens)} tokens")
        if scale.tokens_per_parameter < self.tokens_per_parameter:
            lacks.append(
                f"{scale.tokens_per_parameter:.2g} of at least {self.tokens_per_parameter:g} tokens a parameter"
            )
        return f"{', '.join(lacks)}: {self.because.strip()}" if lacks else ""

    def missing_model(self, scale: Scale) -> bool:
        """Whether the model is too small, however long it trains."""
        return scale.parameters < self.parameters


@dataclass(frozen=True)
class Arm:
    """One run of a comparison: its mean end gap in per cent (None: not there), over how many seeds, and its end.

    `by_seed` holds the end gap of each seed that `value` is the mean of, by the number of the replica: minus infinity
    where that one diverged, nothing where it has no value. `every_seed` holds the same of all its seeds where other
    arms lack some (repro.analysis.arms): only pairs count them. `is_paired` is false where all seeds were
    compared with one and the same run of the baseline.
    """

    name: str
    value: float | None
    seeds: int = 1
    diverged_fraction: float | None = None
    by_seed: Mapping[int, float] = field(default_factory=dict)
    every_seed: Mapping[int, float] = field(default_factory=dict)
    is_paired: bool = True

    @property
    def rank_value(self) -> float | None:
        """Value for an order: a diverged run is worse than everything."""
        return -math.inf if self.diverged_fraction is not None else self.value

    @property
    def num_runs(self) -> int:
        """One a seed; an arm that names no seeds is one run."""
        return max(1, len(self.by_seed))

    @property
    def num_diverged(self) -> int:
        """How many of its runs diverged."""
        return [*self.by_seed.values()].count(-math.inf) or int(self.diverged_fraction is not None)

    def end_words(self) -> str:
        """How its runs ended."""
        if self.diverged_fraction is None:
            return f"{self.name} ends"
        at = f"at {100 * self.diverged_fraction:.3g} %"
        if self.num_runs == 1:
            return f"{self.name} diverges {at}"
        verb = "diverges" if self.num_diverged == 1 else "diverge, the first"
        return f"{self.num_diverged} of {self.num_runs} seeds of {self.name} {verb} {at}"

    def words(self, limit: float | None = None) -> str:
        """Its value, with an interval that reaches `limit` to both sides, or its end."""
        if self.diverged_fraction is not None:
            return f"{self.name} diverged at {100 * self.diverged_fraction:.3g} %"
        seeds = f" (mean of {self.seeds} seeds)" if self.seeds > 1 else ""
        return f"{self.name} {'no value' if self.value is None else with_interval(self.value, limit)}{seeds}"


@dataclass(frozen=True)
class Case:
    """What every judgement needs beside its numbers."""

    claim: Claim
    element: str
    scale: Scale
    reach: Reach
    paper: str

    def verdict(self, verdict: str, ours: str, reason: str, **numbers: Any) -> Verdict:
        claim = self.claim
        return Verdict(
            claim.id, self.element, claim.kind, claim.statement, self.paper, ours, verdict, reason, self.scale.tier,
            {"parameters": self.scale.parameters, "tokens": self.scale.tokens, **numbers},
        )  # fmt: skip


def words_of(arms: Sequence[Arm], limits: Sequence[float | None] | None = None) -> str:
    """The arms' values or ends, each with the interval that its limit makes."""
    return ", ".join(arm.words(limit) for arm, limit in zip(arms, limits or [None] * len(arms), strict=True))


def with_interval(value: float, limit: float | None) -> str:
    """-1.45 [-1.60, -1.30]; without a limit the value alone."""
    interval = "" if limit is None else f" [{value - limit:+.2f}, {value + limit:+.2f}]"
    return f"{value:+.2f}{interval}"


def human(number: float) -> str:
    """1300000 -> 1.3M; three significant digits."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.3g}{suffix}"
    return f"{number:.3g}"
