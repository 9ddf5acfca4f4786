"""paper.yaml and the claims file, checked before anything is trained: keys, values, and the names that they share.

    check_elements(plan)    for the command line and the workflow, whenever a plan is read
    read_paper_file(...)    the same checks of one element, for who draws and judges it

Needs no pandas, so that planning stays fast. Does not: read paper.csv, or build what figures use
(repro.analysis.paper).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PositiveFloat

from repro.analysis.claims_file import Claim, groups_of, load_claims
from repro.analysis.palette import DASHES, PALETTE
from repro.experiments.elements import DEFAULT_FIGURES, Element, ElementFile, Needs, elements_of
from repro.experiments.errors import nearest, read_mapping, validate
from repro.experiments.plan import Plan
from repro.experiments.record import Record

# Claims of these kinds are judged at every size.
_WITHOUT_REACH = ("exact", "hardware")
# What the paper calls its parts: fig6a, table2, sec4.1, secE42, appD.
_PART = re.compile(r"(fig|table)\d+[a-z]?|(sec|app)[A-Z0-9][0-9.]*")


def _one_of(kind: str, known: Iterable[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"no {kind} {name!r}{nearest(name, known)}")
        return name

    return AfterValidator(check)


class _Series(Record):
    """One entry of `series` (repro.analysis.paper.Series)."""

    run: str
    label: str
    color: Annotated[str, _one_of("color", PALETTE)]
    dash: Annotated[str, _one_of("dash", DASHES)] = "solid"
    panel: str = "main"


class _Reach(Record):
    """`reach` of a judged claim (repro.analysis.verdicts.Reach)."""

    because: str
    parameters: PositiveFloat | None = None
    tokens: PositiveFloat | None = None
    tokens_per_parameter: PositiveFloat | None = None


class _Rule(Record):
    """How an element judges one claim. The last five keys belong to one figure each."""

    reach: _Reach | None = None
    because: str = ""
    tolerance: PositiveFloat | None = None
    equal_within: PositiveFloat | None = None
    arms: dict[Any, str] = Field(default_factory=dict)
    order: list[Any] = Field(default_factory=list)
    finite: dict[Any, bool] = Field(default_factory=dict)
    run: str | None = None
    late_order: list[Any] = Field(default_factory=list)
    early_equal: list[Any] = Field(default_factory=list)
    early_at: PositiveFloat | None = None
    share: PositiveFloat | None = None
    exception: str = ""


class _PaperFile(ElementFile):
    """paper.yaml, whole; `paper` may hold whatever the figure draws from it."""

    caption: str = Field(min_length=1)
    needs: Needs
    series: list[_Series] | None = None
    judge: dict[str, dict[str, Any]] | None = None


def read_paper_file(path: Path, known: Mapping[str, Claim], claims_path: Path) -> dict[str, Any]:
    """paper.yaml as it stands. Raises ValueError in one line naming file, key and nearest valid value.

    For an unknown or missing key, a value of another kind, a claim that `known` (of `claims_path`) lacks, a judged
    claim that is not listed or has no reach, a run that the element does not need, an order that names no arm.
    """
    content = read_mapping(path)
    told = validate(_PaperFile, content, path)
    needed = [run for runs in told.needs.model_dump().values() if isinstance(runs, tuple) for run in runs]
    for claim in told.claims:
        if claim not in known:
            raise ValueError(f"{path}: claims: {claims_path} has no {claim!r}{nearest(claim, known)}")
    for number, series in enumerate(told.series or []):
        _check_run(series.run, needed, f"{path}: series.{number}.run")
    judge = told.judge or {}
    for claim in judge:
        if claim not in told.claims:
            raise ValueError(
                f"{path}: judge.{claim}: not among the claims of this element{nearest(claim, told.claims)}"
            )
    for claim in told.claims:
        rule = validate(_Rule, judge.get(claim, {}), f"{path}: judge.{claim}", strict=True)
        _check_rule(rule, known[claim], needed, f"{path}: judge.{claim}")
    return content


def _check_rule(rule: _Rule, claim: Claim, needed: list[str], where: str) -> None:
    """Raises ValueError for a missing reach, a run that nothing trains, and a name that is no arm."""
    if rule.reach is None and claim.kind not in _WITHOUT_REACH:
        raise ValueError(
            f"{where}: missing reach, the least `parameters` and `tokens_per_parameter` at which a "
            "run can show this, with `because`; {because: ...} alone is any size"
        )
    for arm, run in rule.arms.items():
        _check_run(run, needed, f"{where}.arms.{arm}")
    if rule.run is not None:
        _check_run(rule.run, needed, f"{where}.run")
    named = {
        "order": rule.order or claim.numbers.get("order", []),
        "drawn": [*claim.drawn],
        "finite": [*rule.finite],
        "late_order": rule.late_order,
        "early_equal": rule.early_equal,
    }
    arms = [str(arm) for arm in rule.arms]
    for key, names in named.items():
        for name in (name for group in groups_of(names) for name in group):
            if name not in arms:
                raise ValueError(
                    f"{where}: {key} names {name!r}, which is no key of arms{nearest(name, arms)}"
                )


def _check_run(run: str, needed: list[str], where: str) -> None:
    if run not in needed:
        raise ValueError(
            f"{where}: run {run!r} is not in needs.runs, so that nothing trains it{nearest(run, needed)}"
        )


def check_elements(plan: Plan, figures_dir: Path = DEFAULT_FIGURES) -> dict[str, Element]:
    """All elements (repro.experiments.elements), once their files and the claims that they judge are found right.

    Raises ValueError as read_paper_file, and for a claim that no element or more than one judges, or whose `element`
    is none. Away from the figures (none is there) nothing is compared.
    """
    elements = elements_of(plan, figures_dir)
    if not elements:
        return elements
    path = plan.configs_dir / "claims.yaml"
    claims = load_claims(path)
    judges: dict[str, list[str]] = {}
    for element in elements.values():
        read_paper_file(figures_dir / element.name / "paper.yaml", claims, path)
        for claim in element.claims:
            judges.setdefault(claim, []).append(element.name)
    for claim in claims.values():
        where = f"{path}: {claim.section}.{claim.id}"
        found = judges.get(claim.id, [])
        if claim.where not in elements and not _PART.fullmatch(claim.where):
            raise ValueError(f"{where}: there is no element {claim.where!r}{nearest(claim.where, elements)}")
        if not found:
            raise ValueError(f"{where}: no {figures_dir}/*/paper.yaml has {claim.id} among its claims")
        if len(found) > 1:
            raise ValueError(f"{where}: judged twice, by {' and '.join(found)}")
        if claim.is_own and claim.where != found[0]:
            raise ValueError(f"{where}: element is {claim.where!r}, but {found[0]!r} judges it")
    return elements
