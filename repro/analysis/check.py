"""Collects the verdicts of all elements: every claim of configs/claims.yaml once, as JSON, Markdown and a page.

    python -m repro.analysis.check --results results/tiny

Reads elements/*/claims.json of today's elements (what a removed one left is passed over), writes check.json,
check.md, check.html and landing.rst (the report's first page), and prints the table. A claim that no element judges,
that two judge, or that the claims file does not know is an error, and so is an exact claim that does not hold
(exit status 1). Does not: judge, or word the pages
(repro.analysis.check_page).
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path
from typing import Any

from repro.analysis.check_page import summary, to_landing, to_markdown, to_page
from repro.analysis.claims_file import Claim, load_claims
from repro.analysis.verdicts import REPRODUCED, VERDICTS, Verdict
from repro.experiments.elements import DEFAULT_FIGURES, load_elements
from repro.options import OneLineParser

_TERMINAL_COLUMNS = 118


def collect(results: Path, claims: dict[str, Claim], elements: Collection[str] = ()) -> list[Verdict]:
    """All verdicts in the order of the claims file; of `elements`, or where none is named of all that are there.

    Raises ValueError naming each claim that is missing, judged twice or unknown, and each unreadable file.
    """
    if not (results / "elements").is_dir():
        raise ValueError(f"{results}: no results folder with elements/; `snakemake check` makes it")
    found: dict[str, list[Verdict]] = {}
    for path in sorted(results.glob("elements/*/claims.json")):
        if elements and path.parent.name not in elements:
            continue  # of an element that was removed
        try:
            for entry in json.loads(path.read_text(encoding="utf-8")):
                found.setdefault(entry["claim"], []).append(Verdict(**entry))
        except (json.JSONDecodeError, TypeError, KeyError) as error:
            raise ValueError(f"{path}: no complete list of verdicts ({error}); make it again") from None
    problems = [f"{name}: no element judges it" for name in claims if name not in found]
    for name, verdicts in found.items():
        if name not in claims:
            problems.append(f"{name}: judged by {verdicts[0].element}, but not in the claims file")
        elif len(verdicts) > 1:
            problems.append(f"{name}: judged by {' and '.join(verdict.element for verdict in verdicts)}")
    if problems:
        raise ValueError(f"{results}: claims do not match: " + "; ".join(problems))
    return [found[name][0] for name in claims]


def failures(verdicts: list[Verdict]) -> list[Verdict]:
    """Exact claims that do not hold: an error of this project, whatever the tier."""
    return [verdict for verdict in verdicts if verdict.kind == "exact" and verdict.verdict != REPRODUCED]


def to_json(verdicts: list[Verdict]) -> str:
    """check.json: counts by verdict, and the verdicts."""
    counts = {name: sum(verdict.verdict == name for verdict in verdicts) for name in VERDICTS}
    content: dict[str, Any] = {"tier": verdicts[0].tier, "counts": counts}
    content["claims"] = [verdict.to_dict() for verdict in verdicts]
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def to_text(verdicts: list[Verdict]) -> str:
    """The table for a terminal: claim, verdict, what was found; the reason below."""
    lines = []
    for verdict in verdicts:
        lines.append(f"{verdict.claim:5} {verdict.verdict:14} {verdict.statement}")
        for name, text in (("paper", verdict.paper), ("here", verdict.ours), ("why", verdict.reason)):
            if text:
                lines += textwrap.wrap(
                    text, _TERMINAL_COLUMNS, initial_indent=f"      {name:6}", subsequent_indent=" " * 12
                )
    return "\n".join([*lines, "", summary(verdicts)])


def main(arguments: list[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m repro.analysis.check", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--results", type=Path, required=True, help="results folder of a tier, e.g. results/tiny"
    )
    parser.add_argument("--claims", type=Path, default=Path("configs/claims.yaml"), help="the paper's claims")
    parser.add_argument(
        "--figures", type=Path, default=DEFAULT_FIGURES, help="the folders of today's elements"
    )
    given = parser.parse_args(arguments)
    try:
        claims = load_claims(given.claims)
        verdicts = collect(given.results, claims, load_elements(given.figures))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    texts = {
        "check.json": to_json(verdicts),
        "check.md": to_markdown(verdicts, given.results),
        "check.html": to_page(verdicts, claims, given.results),
        "landing.rst": to_landing(verdicts, given.results),
    }
    for name, text in texts.items():
        temporary = given.results / f".writing.{name}"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, given.results / name)
    print(to_text(verdicts))
    broken = failures(verdicts)
    for verdict in broken:
        print(
            f"error: {verdict.claim} is exact and does not hold: {verdict.ours}; {verdict.reason}",
            file=sys.stderr,
        )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
