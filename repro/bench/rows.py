"""One line of the benchmark: what was measured, against which floor, and how the two compare.

    name       group/format/..., what `--rows` chooses by, e.g. "qdq/nvfp4/1x16/rne"
    measured   seconds or bytes; None where this machine cannot, and `note` then says what it needs
    floor      the same unit: the least it could be, or what it is compared with; `floor_from` says how it was found
    ratio      of the two, in the direction that `target` is stated in: a share of the floor's rate (">= 0.90"), or a
               multiple of the floor's time ("<= 1.02")

Does not: measure (the modules beside this one do), or print (`report.py`).
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal


class MissingError(Exception):
    """Raised by a measurement that this machine cannot make; the text says what it needs."""


@dataclass(frozen=True)
class Target:
    """A bound on a row's ratio."""

    bound: Literal[">=", "<="]
    value: float

    def __str__(self) -> str:
        return f"{self.bound} {self.value:.2f}"

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.value if self.bound == ">=" else ratio <= self.value


@dataclass(frozen=True)
class Measurement:
    """What the function of a case returns."""

    measured: float
    floor: float | None = None
    floor_from: str = ""
    ratio: float | None = None
    note: str = ""
    #: Numbers of this kind of row alone, e.g. tflops, bytes_per_value.
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A row before it is measured."""

    name: str
    what: str
    measure: Callable[[], Measurement]
    target: Target | None = None
    unit: Literal["s", "bytes"] = "s"
    #: Takes a minute or so: not in a short run, unless asked for by name.
    is_long: bool = False


@dataclass(frozen=True)
class Row:
    """A row as it is printed and kept."""

    name: str
    what: str
    unit: str
    floor: float | None
    floor_from: str
    measured: float | None
    ratio: float | None
    target: str
    met: bool | None
    note: str
    #: Whether the measurement broke, which is another thing than a machine that lacks something.
    failed: bool
    details: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_case(case: Case) -> Row:
    """Measures a case. Never raises for what a machine lacks or a library refuses: the row says it."""
    try:
        found = case.measure()
    except MissingError as missing:
        return _empty(case, str(missing))
    except ImportError as error:
        return _empty(case, f"needs {error.name or error}")
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return _empty(case, f"failed: {first_line(error)}", failed=True)
    met = case.target.is_met(found.ratio) if case.target and found.ratio is not None else None
    return Row(
        name=case.name,
        what=case.what,
        unit=case.unit,
        floor=found.floor,
        floor_from=found.floor_from,
        measured=found.measured,
        ratio=found.ratio,
        target=str(case.target or ""),
        met=met,
        note=found.note,
        failed=False,
        details=found.details,
    )


def first_line(error: BaseException) -> str:
    """What an error says first; its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _empty(case: Case, note: str, *, failed: bool = False) -> Row:
    target = str(case.target or "")
    return Row(case.name, case.what, case.unit, None, "", None, None, target, None, note, failed, {})


def only_elsewhere(cases: Iterable[Case], others: Iterable[Case], *, kind: str) -> list[Case]:
    """Those of `others`, the rows of another kind of device, that `cases` lack: known by name, and missing."""
    known = {case.name for case in cases}

    def missing() -> Measurement:
        raise MissingError(f"measured on a {kind} only")

    return [replace(case, measure=missing) for case in others if case.name not in known]


def choose(
    cases: Sequence[Case], patterns: Iterable[str], *, is_full: bool, elsewhere: Sequence[Case] = ()
) -> list[Case]:
    """The cases of a run: those that match a pattern, or all (in a short run without the long ones).

    A pattern matches names that contain it; with * or ? it has to match the whole name. One that matches none of
    `cases` may match `elsewhere`, whose rows say that they are missing. Raises ValueError that names the nearest
    group for a pattern that matches nothing.
    """
    patterns = list(patterns)
    if not patterns:
        return [case for case in cases if is_full or not case.is_long]
    wanted: set[str] = set()
    for pattern in patterns:
        glob = pattern.lower() if set(pattern) & set("*?[") else f"*{pattern.lower()}*"
        own, others = (
            {case.name for case in group if fnmatch.fnmatchcase(case.name.lower(), glob)}
            for group in (cases, elsewhere)
        )
        if not own | others:
            raise ValueError(_unknown(pattern, [case.name for case in (*cases, *elsewhere)]))
        wanted |= own or others
    return [case for case in (*cases, *elsewhere) if case.name in wanted]


def _unknown(pattern: str, names: list[str]) -> str:
    groups = list(dict.fromkeys(name.split("/")[0] for name in names))
    first, slash, rest = pattern.partition("/")
    near = difflib.get_close_matches(first, groups, n=1)
    if near and slash:
        corrected = f"{near[0]}/{rest}"
        inside = [name for name in names if name.startswith(f"{near[0]}/")]
        fits = bool(fnmatch.filter(inside, f"*{corrected}*"))
        near = [corrected] if fits else difflib.get_close_matches(corrected, inside, n=1) or near
    near = near or difflib.get_close_matches(pattern, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"no row matches {pattern!r}{hint} Groups: {', '.join(groups)}"
