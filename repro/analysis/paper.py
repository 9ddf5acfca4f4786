"""One element of the paper as its folder states it: paper.yaml, paper.csv and its claims.

    title, caption      in our own words; the caption is the report's
    claims              ids of configs/claims.yaml that this element judges
    needs               what data() reads: runs, evaluations, mechanisms (run names), bench (true or false), noise:
                        runs that lend their replicas, where a tier has any; what the workflow has to make first
                        (repro.experiments.elements)
    series              run, label, color (a name of palette.PALETTE), dash: what is drawn, in this order
    paper               horizon_trillions, source of the curves, axes (panel of paper.csv -> what it measures), and
                        whatever else the paper states for the element
    judge               per claim: reach with its `because` (of all but exact claims and those on hardware), tolerance
                        or equal_within with their own, arms, order; run, of a number at which one run's curve ends

paper.csv holds the paper's curves: panel, run (our name of the series), tokens_trillions, value.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from repro.analysis.claims_file import Claim, load_claims
from repro.analysis.palette import DASHES, PALETTE
from repro.analysis.verdicts import Case, Reach, Scale
from repro.experiments.errors import nearest, read_mapping

_KEYS = ("title", "caption", "claims", "needs", "series", "paper", "judge")
_CURVE_COLUMNS = ("panel", "run", "tokens_trillions", "value")
# Claims of these kinds are judged at every size.
_WITHOUT_REACH = ("exact", "hardware")


@dataclass(frozen=True)
class Series:
    """How one run is drawn."""

    run: str
    label: str
    color: str
    dash: str = "solid"
    panel: str = "main"


class _Stated(dict[str, Any]):
    """`paper` of a paper.yaml: a key that drawing or judging asks for and that is not there raises ValueError."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        super().__init__(content)
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise ValueError(f"{self._path}: missing paper.{key}")

    def __or__(self, other: dict[str, Any]) -> _Stated:  # type: ignore[override]
        return _Stated(self._path, {**self, **other})


@dataclass(frozen=True)
class Paper:
    """paper.yaml and paper.csv of one element, joined with the statements of its claims."""

    element: str
    title: str
    claims: dict[str, Claim]
    series: tuple[Series, ...]
    stated: dict[str, Any]
    judge: dict[str, dict[str, Any]]
    curves: pd.DataFrame = field(repr=False)

    @property
    def labels(self) -> dict[str, str]:
        """run -> label."""
        return {series.run: series.label for series in self.series}

    def curve(self, run: str, panel: str = "main") -> pd.DataFrame:
        """The paper's curve of a series as columns fraction (of the paper's horizon), tokens_trillions and value."""
        rows = self.curves[(self.curves["run"] == run) & (self.curves["panel"] == panel)]
        return rows.assign(fraction=rows["tokens_trillions"] / self.stated["horizon_trillions"])

    def drawn_of(self, claim: str) -> dict[str, float]:
        """arm -> end value of the curve in the paper, of a claim about several (configs/claims.yaml); else empty."""
        numbers = self.claims[claim].numbers
        drawn = numbers.get("drawn", {})
        if isinstance(drawn, list):
            groups = [group if isinstance(group, list) else [group] for group in numbers["order"]]
            drawn = dict(zip([key for group in groups for key in group], drawn, strict=True))
        return {str(arm): value for arm, value in drawn.items()} if isinstance(drawn, dict) else {}

    @property
    def drawn_ends(self) -> dict[str, float]:
        """run -> end value of its curve in the paper, of the runs for which a claim of this element states one."""
        ends: dict[str, float] = {}
        for claim, rule in self.judge.items():
            runs = {str(arm): run for arm, run in rule.get("arms", {}).items()}
            ends |= {runs[arm]: value for arm, value in self.drawn_of(claim).items()}
            if "run" in rule:
                ends[rule["run"]] = self.claims[claim].numbers["drawn"]
        return ends

    def only(self, panel: str) -> Paper:
        """The element as one of its panels states it: its series, and what paper.panels.<panel> adds or replaces."""
        series = tuple(entry for entry in self.series if entry.panel == panel)
        return replace(self, series=series, stated=self.stated | self.stated["panels"][panel])

    def reach(self, claim: str) -> Reach:
        """Least scale of a claim; stated in judge.<claim>.reach."""
        return Reach(**self.judge[claim]["reach"])

    def case(self, claim: str, scale: Scale, *, paper: str) -> Case:
        """Everything about a claim that its judgement needs beside the numbers."""
        return Case(self.claims[claim], self.element, scale, self.reach(claim), paper)


def load_paper(folder: Path, claims_path: Path) -> Paper:
    """Reads paper.yaml and paper.csv (where there is one).

    Raises ValueError naming the file and the key: unknown or missing key, unknown claim, a judged claim that is not
    listed, a series whose run the element does not need.
    """
    path = folder / "paper.yaml"
    content = read_mapping(path)
    for key in content:
        if key not in _KEYS:
            raise ValueError(f"{path}: unknown key {key!r}{nearest(key, _KEYS)}")
    for key in ("title", "caption", "needs"):
        if not content.get(key):
            raise ValueError(f"{path}: missing {key}")
    known = load_claims(claims_path)
    claims = {}
    for claim in content.get("claims") or []:
        if claim not in known:
            raise ValueError(f"{path}: claims: {claims_path} has no {claim!r}{nearest(claim, known)}")
        claims[claim] = known[claim]
    judge = content.get("judge") or {}
    for claim in judge:
        if claim not in claims:
            raise ValueError(
                f"{path}: judge.{claim}: not among the claims of this element{nearest(claim, claims)}"
            )
        if "reach" in judge[claim]:
            _check_keys(Reach, judge[claim]["reach"], f"{path}: judge.{claim}.reach")
        elif claims[claim].kind not in _WITHOUT_REACH:
            raise ValueError(
                f"{path}: judge.{claim}: missing reach, the least `parameters` and `tokens_per_parameter` at which a "
                "run can show this, with `because`; {because: ...} alone is any size"
            )
    return Paper(
        element=folder.name,
        title=content["title"],
        claims=claims,
        series=_series(content, path),
        stated=_Stated(path, content.get("paper") or {}),
        judge=judge,
        curves=_curves(folder / "paper.csv"),
    )


def _series(content: dict[str, Any], path: Path) -> tuple[Series, ...]:
    needed = [run for runs in content["needs"].values() if isinstance(runs, list) for run in runs]
    found = content.get("series") or []
    for number, entry in enumerate(found):
        _check_keys(Series, entry, f"{path}: series[{number}]")
        if entry["run"] not in needed:
            raise ValueError(
                f"{path}: series[{number}]: run {entry['run']!r} is not in needs.runs, so that nothing trains it"
                f"{nearest(entry['run'], needed)}"
            )
        for key, known in (("color", PALETTE), ("dash", DASHES)):
            if key in entry and entry[key] not in known:
                raise ValueError(
                    f"{path}: series[{number}]: no {key} {entry[key]!r}{nearest(entry[key], known)}"
                )
    return tuple(Series(**entry) for entry in found)


def _check_keys(kind: type[Series] | type[Reach], entry: dict[str, Any], where: str) -> None:
    """Raises ValueError, told by `where`, for a key that a record does not have or that it lacks."""
    known = {key.name: key.default is MISSING for key in fields(kind)}
    for key in entry:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}{nearest(key, known)}")
    for key, is_required in known.items():
        if is_required and key not in entry:
            raise ValueError(f"{where}: missing {key}")


def _curves(path: Path) -> pd.DataFrame:
    if not path.is_file():
        return pd.DataFrame(columns=list(_CURVE_COLUMNS))
    curves = pd.read_csv(path)
    if tuple(curves.columns) != _CURVE_COLUMNS:
        raise ValueError(
            f"{path}: columns must be {', '.join(_CURVE_COLUMNS)}, not {', '.join(curves.columns)}"
        )
    return curves
