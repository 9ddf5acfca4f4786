"""What each figure and table needs, read from paper_figures/<element>/paper.yaml as data.

The figures own that file (title, caption, claims, needs); here it is only read, for the command line and
the workflow. Importing paper_figures would turn the floors around, so nothing is imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from repro.experiments.errors import nearest, read_mapping, validate
from repro.experiments.plan import Plan
from repro.experiments.record import Record

DEFAULT_FIGURES = Path("paper_figures")


@dataclass(frozen=True)
class Element:
    """One figure or table and what its data are made from.

    `noise` are runs that it does not show: their replicas tell about the seed noise, where a tier has any.
    `source` is "own" of a figure of one's own, which the tables of recorded results leave out.
    """

    name: str
    title: str
    caption: str
    source: str | None
    claims: tuple[str, ...]
    runs: tuple[str, ...]
    noise: tuple[str, ...]
    evaluations: tuple[str, ...]
    mechanisms: tuple[str, ...]
    bench: bool

    @property
    def all_runs(self) -> tuple[str, ...]:
        """Every run that has to be trained, evaluated or measured for this element, without replicas and noise."""
        return tuple(dict.fromkeys((*self.runs, *self.evaluations, *self.mechanisms)))


class Needs(Record):
    """`needs` of paper.yaml."""

    runs: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()
    evaluations: tuple[str, ...] = ()
    mechanisms: tuple[str, ...] = ()
    bench: bool = False


class ElementFile(Record):
    """paper.yaml; what is no one's here but the figure's (repro.analysis.paper_file) may hold anything."""

    title: str = Field(min_length=1)
    caption: str = ""
    source: Literal["own"] | None = None
    claims: tuple[str, ...] = ()
    needs: Needs | None = None
    series: Any = None
    paper: Any = None
    judge: Any = None


def load_elements(figures_dir: Path = DEFAULT_FIGURES) -> dict[str, Element]:
    """All elements in the paper's order: figures, tables, then the project's own.

    Raises ValueError naming the file and key that is missing, unknown or of another kind.
    """
    elements = {path.parent.name: _element(path) for path in sorted(figures_dir.glob("*/paper.yaml"))}
    return dict(sorted(elements.items(), key=lambda item: _order(item[0])))


def elements_of(plan: Plan, figures_dir: Path = DEFAULT_FIGURES) -> dict[str, Element]:
    """All elements, after a look at what the plan's runs say of them.

    Raises ValueError as load_elements, and naming file and run for an element or claim that no figure has. Away from
    the figures (none is there) nothing is compared.
    """
    elements = load_elements(figures_dir)
    if not elements:
        return {}
    claims = {claim for element in elements.values() for claim in element.claims}
    for run in plan.runs.values():
        for key, names, known in (("elements", run.elements, elements), ("claims", run.claims, claims)):
            for name in names:
                if name not in known:
                    raise ValueError(
                        f"{run.derived.file}: runs.{run.name}.{key}: there is no {name!r}{nearest(name, known)}"
                    )
    return elements


def runs_of(element: Element, plan: Plan) -> list[str]:
    """The element's runs and their replicas at this tier; raises ValueError for a run that no experiment makes."""
    for name in (*element.all_runs, *element.noise):
        if name not in plan.runs:
            raise ValueError(
                f"paper_figures/{element.name}/paper.yaml: needs: no run {name!r} at tier {plan.tier}"
                f"{nearest(name, plan.runs)}"
            )
    return list(dict.fromkeys([*curves_of(element, plan), *element.all_runs]))


def curves_of(element: Element, plan: Plan) -> list[str]:
    """Runs whose losses the element reads, with their replicas: its own, and its noise where that has replicas."""
    lent = [name for name in element.noise if plan.replicas(name)]
    names = [(name, *plan.replicas(name)) for name in (*element.runs, *lent)]
    return list(dict.fromkeys(name for group in names for name in group))


def _element(path: Path) -> Element:
    name = path.parent.name
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ValueError(f"{path}: {name!r} is no name of an element; small letters, digits and _")
    told = validate(ElementFile, read_mapping(path), path)
    shown = told.model_dump(include={"title", "caption", "source", "claims"})
    return Element(name=name, **shown, **(told.needs or Needs()).model_dump())


def _order(name: str) -> tuple[int, int, str]:
    found = re.fullmatch(r"(fig|table)(\d+)", name)
    if not found:
        return (2, 0, name)
    return (0 if found[1] == "fig" else 1, int(found[2]), name)
