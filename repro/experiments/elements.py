"""What each figure and table needs, read from paper_figures/<element>/paper.yaml as data.

The figures own that file (title, caption, claims, needs); here it is only read, for the command line and
the workflow. Importing paper_figures would turn the floors around, so nothing is imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.experiments.errors import nearest, read_mapping
from repro.experiments.plan import Plan

DEFAULT_FIGURES = Path("paper_figures")


@dataclass(frozen=True)
class Element:
    """One figure or table and what its data are made from.

    `noise` are runs that it does not show: their replicas tell about the seed noise, where a tier has any.
    """

    name: str
    title: str
    caption: str
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


def load_elements(figures_dir: Path = DEFAULT_FIGURES) -> dict[str, Element]:
    """All elements in the paper's order: figures, tables, then the project's own.

    Raises ValueError naming the file and key that is missing or unknown.
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
    content = read_mapping(path)
    needs = content.get("needs") or {}
    known = ("runs", "noise", "evaluations", "mechanisms", "bench")
    for key in needs:
        if key not in known:
            raise ValueError(f"{path}: needs: unknown key {key!r}{nearest(key, known)}")
    if "title" not in content:
        raise ValueError(f"{path}: title is missing")
    return Element(
        name=path.parent.name,
        title=str(content["title"]),
        caption=str(content.get("caption", "")),
        claims=_names(content.get("claims")),
        runs=_names(needs.get("runs")),
        noise=_names(needs.get("noise")),
        evaluations=_names(needs.get("evaluations")),
        mechanisms=_names(needs.get("mechanisms")),
        bench=bool(needs.get("bench", False)),
    )


def _names(value: Any) -> tuple[str, ...]:
    return tuple(str(name) for name in value or ())


def _order(name: str) -> tuple[int, int, str]:
    found = re.fullmatch(r"(fig|table)(\d+)", name)
    if not found:
        return (2, 0, name)
    return (0 if found[1] == "fig" else 1, int(found[2]), name)
