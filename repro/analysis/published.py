"""Figures, tables and verdicts of recorded runs, copied to where a reader finds them in the repository.

    paper_figures/<element>/recorded/<tier>.csv    what the element draws, curves thinned
    paper_figures/<element>/recorded/<tier>.png    its picture
    recorded/<tier>/claims.md                      the claims table
    recorded/<tier>/figures.md                     all of them on one page (repro.analysis.figure_page)
    recorded/<tier>/runs.csv                       the recorded runs (repro.analysis.run_list)
    README.md                                      the claims table in its place (repro.analysis.readme_claims)

Only elements that hold a number of a recorded run; copies of others are removed. Own elements and claims are left
out: what stands beside the paper's statements is the paper's.

Does not: make them; the workflow does, with recorded=true.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from pathlib import Path

from repro.analysis.claims_file import load_claims
from repro.analysis.figure_page import write_figure_page
from repro.analysis.readme_claims import write_readme_claims
from repro.analysis.run_list import write_run_list
from repro.analysis.verdicts import Verdict
from repro.experiments import Plan
from repro.experiments.elements import load_elements

#: Of a curve in a published table; the records hold every step.
CURVE_POINTS = 200


def publish(plan: Plan, results: Path, recorded: Path, figures: Path) -> list[Path]:
    """Copy table and picture of each element that holds a recorded number and the claims table, make the page of all
    elements, and list the runs; gives what was written."""
    written = []
    elements = [element for element in load_elements(figures).values() if element.source != "own"]
    found = [results / "elements" / name / "data.csv" for name in sorted(e.name for e in elements)]
    for path in (path for path in found if path.is_file()):
        text = path.read_text(encoding="utf-8")
        target = figures / path.parent.name / "recorded" / f"{plan.tier}.csv"
        if not _is_recorded(text):
            target.unlink(missing_ok=True)
            target.with_suffix(".png").unlink(missing_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_thinned(text), encoding="utf-8")
        written += [target, _copy(path.with_name("figure.png"), target.with_suffix(".png"))]
    from repro.analysis.check_page import (
        to_markdown,
    )  # imports pandas, which the light commands have to do without

    verdicts = _of_the_paper(plan, results)
    claims = recorded / plan.tier / "claims.md"
    claims.write_text(_linked(to_markdown(verdicts, results), claims, figures, plan.tier), encoding="utf-8")
    written += [claims, write_figure_page(plan.tier, results, claims, figures, verdicts)]
    runs = write_run_list(plan, recorded / plan.tier)
    readme = write_readme_claims(recorded.parent / "README.md", claims, plan.tier)
    return [*written, *(path for path in (runs, readme) if path)]


def _of_the_paper(plan: Plan, results: Path) -> list[Verdict]:
    """The verdicts of check.json on the paper's claims. Raises ValueError where the workflow has not made it yet."""
    source = results / "check.json"
    if not source.is_file():
        raise ValueError(f"{source}: not there; run `snakemake all` with recorded=true first")
    known = load_claims(plan.configs_dir / "claims.yaml")
    papers = {name for name, claim in known.items() if not claim.is_own}
    entries = json.loads(source.read_text(encoding="utf-8"))["claims"]
    return [Verdict(**entry) for entry in entries if entry["claim"] in papers]


def _linked(text: str, claims: Path, figures: Path, tier: str) -> str:
    """The claims table that is to stand in `claims`, its links led to the published pictures.

    An element without one stays a word.
    """

    def link(found: re.Match[str]) -> str:
        picture = figures / found[1] / "recorded" / f"{tier}.png"
        place = Path(os.path.relpath(picture, claims.parent)).as_posix()
        return f"[{found[1]}]({place})" if picture.is_file() else found[1]

    return re.sub(r"\[(\w+)\]\(elements/\1/figure\.png\)", link, text)


def _thinned(text: str) -> str:
    """A table of curves with at most CURVE_POINTS points of each, evenly spread, the first and the last among them.

    Values keep seven digits. A curve is what differs in nothing but its points; other tables stay as they are.
    """
    header, *rows = csv.reader(text.splitlines())
    places = {name: header.index(name) for name in ("tokens", "fraction", "value") if name in header}
    if len(places) < 3:
        return text
    curves: dict[tuple[str, ...], list[list[str]]] = {}
    for row in rows:
        key = tuple(cell for place, cell in enumerate(row) if place not in places.values())
        curves.setdefault(key, []).append(row)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for points in curves.values():
        number = min(len(points), CURVE_POINTS)
        for index in range(number):
            row = list(points[round(index * (len(points) - 1) / max(1, number - 1))])
            for name in ("fraction", "value"):
                row[places[name]] = f"{float(row[places[name]]):.7g}" if row[places[name]] else ""
            writer.writerow(row)
    return out.getvalue()


def _copy(source: Path, target: Path) -> Path:
    """Raises ValueError when the workflow has not made the file yet."""
    if not source.is_file():
        raise ValueError(f"{source}: not there; run `snakemake all` with recorded=true first")
    shutil.copyfile(source, target)
    return target


def _is_recorded(text: str) -> bool:
    """Whether a row comes from a run: it names the run's hash and the commit that it was trained with."""
    rows = csv.DictReader(text.splitlines())
    return any(row.get("run_hash") and row.get("git_commit") for row in rows)
