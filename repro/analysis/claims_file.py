"""configs/claims.yaml: what the paper states that a reproduction can check, each statement with a number of its own.

The file has sections of claims (exact, hardware, and one per group of runs) and the section table2, which holds the
scores of Table 2; together those scores are one more claim, T2. The section own is for statements that the paper does
not make: the tables of recorded results leave them out. Does not: judge (repro.analysis.verdicts).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat

from repro.experiments.errors import nearest, read_mapping, validate
from repro.experiments.record import Record

KINDS = ("exact", "value", "order", "event", "hardware")
# Sections whose claims need no `kind` of their own.
_SECTION_KIND = {"exact": "exact", "hardware": "hardware"}
SCORES_SECTION = "table2"
SCORES_CLAIM = "T2"
#: Section of the claims that are not the paper's.
OWN_SECTION = "own"


@dataclass(frozen=True)
class Claim:
    """One entry: `where` is the figure, table or section of the paper; `numbers` its values as written there."""

    id: str
    section: str
    where: str
    kind: str
    statement: str
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether it is a statement of one's own, which the paper does not make."""
        return self.section == OWN_SECTION

    @property
    def drawn(self) -> dict[str, float]:
        """arm -> end value of its curve in the paper, of a claim about several; else empty."""
        drawn = self.numbers.get("drawn", {})
        if isinstance(drawn, list):
            names = [name for group in groups_of(self.numbers["order"]) for name in group]
            drawn = dict(zip(names, drawn, strict=True))
        return {str(arm): value for arm, value in drawn.items()} if isinstance(drawn, dict) else {}


class _Entry(Record):
    """One entry of a section, as it stands."""

    element: str
    statement: str
    kind: str | None = None
    value: Any = None
    drawn: float | list[float] | dict[Any, float] | None = None
    drawn_divergence: dict[str, float] | None = Field(default=None, alias="drawn_divergence_T")
    order: list[Any] | None = None
    at: PositiveFloat | None = Field(default=None, le=1)
    tolerance: PositiveFloat | None = None
    source: str = ""
    note: str = ""


def groups_of(order: list[Any]) -> list[list[str]]:
    """An order as claims.yaml writes it, each member a key or a list of keys, as groups of keys."""
    return [[str(key) for key in (group if isinstance(group, list) else [group])] for group in order]


def load_claims(path: str | Path) -> dict[str, Claim]:
    """Claims by id, in the file's order.

    Raises ValueError naming the file, the entry and the key that is missing, doubled or unknown.
    """
    path = Path(path)
    claims: dict[str, Claim] = {}
    for section, entries in read_mapping(path).items():
        if not isinstance(entries, dict):
            raise ValueError(f"{path}: section {section} holds no entries")
        found = [_scores(entries)] if section == SCORES_SECTION else _section(path, section, entries)
        for claim in found:
            if claim.id in claims:
                raise ValueError(
                    f"{path}: {claim.id} stands twice, in {claims[claim.id].section} and {section}"
                )
            claims[claim.id] = claim
    return claims


def _section(path: Path, section: str, entries: dict[str, Any]) -> Iterable[Claim]:
    for name, entry in entries.items():
        where = f"{path}: {section}.{name}"
        if not isinstance(entry, dict):
            raise ValueError(f"{where}: expected keys element, statement, ...")
        told = validate(_Entry, entry, where, strict=True)
        named = [name for group in groups_of(told.order or []) for name in group]
        if isinstance(told.drawn, list) and len(told.drawn) != len(named):
            raise ValueError(f"{where}: drawn has {len(told.drawn)} values, order {len(named)} names")
        numbers = dict(entry)
        kind = numbers.pop("kind", _SECTION_KIND.get(section))
        if kind not in KINDS:
            raise ValueError(f"{where}: no kind {kind!r}{nearest(kind, KINDS)}")
        if section == OWN_SECTION:
            numbers.setdefault("source", "own: not a statement of the paper")
        yield Claim(name, section, numbers.pop("element"), kind, numbers.pop("statement"), numbers)


def _scores(entries: dict[str, Any]) -> Claim:
    groups = entries.get("groups", {})
    tasks = {name: value for name, value in entries.items() if name != "groups"}
    statement = f"scores of Table 2, {len(tasks)} tasks in {len(groups)} groups, FP8 and NVFP4"
    return Claim(
        SCORES_CLAIM, SCORES_SECTION, "table2", "value", statement, {"tasks": tasks, "groups": groups}
    )
