"""configs/claims.yaml: what the paper states that a reproduction can check, each statement with a number of its own.

The file has sections of claims (exact, hardware, and one per group of runs) and the section table2, which holds the
scores of Table 2; together those scores are one more claim, T2. Does not: judge (repro.analysis.verdicts).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.experiments.errors import nearest, read_mapping

KINDS = ("exact", "value", "order", "event", "hardware")
# Sections whose claims need no `kind` of their own.
_SECTION_KIND = {"exact": "exact", "hardware": "hardware"}
SCORES_SECTION = "table2"
SCORES_CLAIM = "T2"


@dataclass(frozen=True)
class Claim:
    """One entry: `where` is the figure, table or section of the paper; `numbers` its values as written there."""

    id: str
    section: str
    where: str
    kind: str
    statement: str
    numbers: dict[str, Any] = field(default_factory=dict)


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
        numbers = dict(entry)
        kind = numbers.pop("kind", _SECTION_KIND.get(section))
        if kind not in KINDS:
            raise ValueError(f"{where}: no kind {kind!r}{nearest(kind, KINDS)}")
        for key in ("element", "statement"):
            if key not in numbers:
                raise ValueError(f"{where}: missing {key}")
        yield Claim(name, section, numbers.pop("element"), kind, numbers.pop("statement"), numbers)


def _scores(entries: dict[str, Any]) -> Claim:
    groups = entries.get("groups", {})
    tasks = {name: value for name, value in entries.items() if name != "groups"}
    statement = f"scores of Table 2, {len(tasks)} tasks in {len(groups)} groups, FP8 and NVFP4"
    return Claim(
        SCORES_CLAIM, SCORES_SECTION, "table2", "value", statement, {"tasks": tasks, "groups": groups}
    )
