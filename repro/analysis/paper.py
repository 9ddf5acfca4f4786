"""One element of the paper as its folder states it: paper.yaml, paper.csv and its claims.

    title, caption      in our own words; the caption is the report's
    source              own: of a figure of one's own; else left out
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

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from repro.analysis.claims_file import Claim, load_claims
from repro.analysis.paper_file import read_paper_file
from repro.analysis.verdicts import Case, Reach, Scale

_CURVE_COLUMNS = ("panel", "run", "tokens_trillions", "value")


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
        return self.claims[claim].drawn

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

    Raises ValueError naming the file and the key (repro.analysis.paper_file), and for other columns of curves.
    """
    path = folder / "paper.yaml"
    known = load_claims(claims_path)
    content = read_paper_file(path, known, claims_path)
    claims = {claim: known[claim] for claim in content.get("claims") or []}
    judge = content.get("judge") or {}
    return Paper(
        element=folder.name,
        title=content["title"],
        claims=claims,
        series=tuple(Series(**entry) for entry in content.get("series") or []),
        stated=_Stated(path, content.get("paper") or {}),
        judge=judge,
        curves=_curves(folder / "paper.csv"),
    )


def _curves(path: Path) -> pd.DataFrame:
    if not path.is_file():
        return pd.DataFrame(columns=list(_CURVE_COLUMNS))
    curves = pd.read_csv(path)
    if tuple(curves.columns) != _CURVE_COLUMNS:
        raise ValueError(
            f"{path}: columns must be {', '.join(_CURVE_COLUMNS)}, not {', '.join(curves.columns)}"
        )
    return curves
