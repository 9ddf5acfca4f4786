"""Runs one step of one element: results -> data.csv, data.csv -> figure, data.csv -> claims.json.

    python -m paper_figures fig8 data   --results results/tiny     writes results/tiny/elements/fig8/data.csv
    python -m paper_figures fig8 draw   --results results/tiny     figure.png and figure.pdf (tables: table.md too)
    python -m paper_figures fig8 claims --results results/tiny     claims.json

Three steps, so that a changed label redraws and nothing else. draw() and claims() see the table as it was read back
from data.csv, never the results. Does not: know any element; each is a module found by its name.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd

from repro.analysis import rules
from repro.analysis.curves import missing_names, missing_runs
from repro.analysis.empty_figure import empty_figure
from repro.analysis.markdown import markdown_table
from repro.analysis.paper import Paper, load_paper
from repro.analysis.results import NotRecorded, Results
from repro.analysis.verdicts import Verdict
from repro.experiments.elements import Element, load_elements
from repro.experiments.errors import nearest
from repro.options import OneLineParser

FOLDER = Path(__file__).parent
STEPS = ("data", "draw", "claims")
# Hexadecimal names that may look like numbers (0012..., 12e45...).
TEXT_COLUMNS = {"git_commit": str, "run_hash": str}


def elements() -> list[str]:
    """Names of all elements in the paper's order."""
    return list(load_elements(FOLDER))


def run(element: str, step: str, results_dir: Path, *, configs: Path = Path("configs")) -> list[Path]:
    """Does one step; returns the files it wrote. Raises ValueError naming what is missing."""
    known = load_elements(FOLDER)
    if element not in known:
        raise ValueError(f"no element {element!r}{nearest(element, known)}")
    if not results_dir.is_dir():
        raise ValueError(f"{results_dir}: no results folder; `snakemake {element}` makes it")
    module = importlib.import_module(f"paper_figures.{element}.figure")
    out = results_dir / "elements" / element
    out.mkdir(parents=True, exist_ok=True)
    if step == "data":
        results = Results(results_dir, configs=configs)
        try:
            table = module.data(results)
        except NotRecorded:
            table = _unrecorded(results, known[element])
        return [_write(out / "data.csv", table.to_csv(index=False, lineterminator="\n"))]
    source = out / "data.csv"
    if not source.is_file():
        raise ValueError(f"{source}: missing; make it with `python -m paper_figures {element} data`")
    table = pd.read_csv(source, dtype=TEXT_COLUMNS)
    paper = load_paper(FOLDER / element, configs / "claims.yaml")
    for series in paper.series:
        if series.run not in set(table["run"]):  # one that is not recorded has a row that says so
            raise ValueError(
                f"paper_figures/{element}/figure.py: data() gives no rows of {series.run}, a series of paper.yaml; "
                "add it to the runs that data() reads"
            )
    if step == "claims":
        verdicts = [verdict.to_dict() for verdict in _claims(module, table, paper)]
        text = json.dumps(verdicts, indent=1, ensure_ascii=False, allow_nan=False)
        return [_write(out / "claims.json", text + "\n")]
    return _draw(module, table, paper, out)


def _unrecorded(results: Results, element: Element) -> pd.DataFrame:
    """The table of an element that can't be made from the records: the runs that it lacks, each with its reason."""
    lost = {name: results.missing(name)["status"] for name in element.all_runs if not results.has(name)}
    for kind, names in (("evaluations", element.evaluations), ("mechanisms", element.mechanisms)):
        for name in names:
            if not results.has_table(kind, name):
                lost.setdefault(name, f"its {kind}")
    assert lost, f"{element.name}: nothing that it needs is missing"
    return pd.DataFrame(
        [{"run": name, "role": "missing", "status": why, "tier": results.tier} for name, why in lost.items()]
    )


def is_empty(table: pd.DataFrame) -> bool:
    """Whether nothing of an element is recorded that could be drawn: no run at all, or not its baseline."""
    lost = missing_runs(table)
    return bool(lost) and set(table["run"]) == set(lost)


def _claims(module: ModuleType, table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    lost = missing_runs(table)
    if not lost or "quantity" in table:  # a table of curves tells each claim what it lacks
        return module.claims(table, paper)
    tier = str(table["tier"].iloc[0])
    shared = {"element": paper.element, "tier": tier, "paper": "-", "ours": "-"}
    reason = rules.unrecorded_words(missing_names(table))
    return [rules.not_measured(claim, reason=reason, **shared) for claim in paper.claims.values()]


def _draw(module: ModuleType, table: pd.DataFrame, paper: Paper, out: Path) -> list[Path]:
    import matplotlib

    with matplotlib.rc_context(fname=FOLDER / "style.mplstyle"):
        empty = is_empty(table)
        figure = empty_figure(table, paper) if empty else module.draw(table, paper)
        written = []
        for suffix, metadata in (("png", {}), ("pdf", {"CreationDate": None})):
            target = out / f"figure.{suffix}"
            temporary = out / f".figure.writing.{suffix}"
            figure.savefig(temporary, metadata=metadata)
            os.replace(temporary, target)
            written.append(target)
    if hasattr(module, "display") and not empty:
        shown = module.display(table, paper)
        rows = markdown_table(list(shown), shown.itertuples(index=False))
        written.append(_write(out / "table.md", f"# {paper.title}\n\n{rows}"))
    return written


def _write(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.writing")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return path


def main(arguments: list[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m paper_figures", description=__doc__.split("\n")[0])
    parser.add_argument("element", help=f"one of {', '.join(elements())}")
    parser.add_argument("step", choices=STEPS)
    parser.add_argument(
        "--results", type=Path, required=True, help="results folder of a tier, e.g. results/tiny"
    )
    parser.add_argument(
        "--configs", type=Path, default=Path("configs"), help="folder with claims.yaml and models/"
    )
    given = parser.parse_args(arguments)
    try:
        for path in run(given.element, given.step, given.results, configs=given.configs):
            print(path)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
