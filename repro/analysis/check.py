"""Collects the verdicts of all elements: every claim of configs/claims.yaml once, as JSON, Markdown and a page.

    python -m repro.analysis.check --results results/tiny

Reads elements/*/claims.json, writes check.json, check.md and check.html, prints the table. A claim that no element
judges, that two judge, or that the claims file does not know is an error; so is an exact claim that does not hold
(exit status 1). Does not: judge.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from repro.analysis.claims_file import Claim, load_claims
from repro.analysis.rules import OUT_OF_REACH
from repro.analysis.verdicts import (
    CONTRADICTED,
    NOT_MEASURABLE,
    NOT_MEASURED,
    REPRODUCED,
    UNRESOLVED,
    VERDICTS,
    Verdict,
)

_COLORS = {
    REPRODUCED: "#009E73",
    CONTRADICTED: "#D55E00",
    UNRESOLVED: "#8a6d00",
    NOT_MEASURABLE: "#0072B2",
    NOT_MEASURED: "#6b6b6b",
}
_TERMINAL_COLUMNS = 118
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .45rem .6rem; border-bottom: 1px solid #ddd; }}
th {{ border-bottom: 2px solid #222; position: sticky; top: 0; background: #fff; }}
td small {{ color: #666; }}
.verdict {{ font-weight: 600; white-space: nowrap; }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}</p>
<p>Reproduced and contradicted are said only where the runs are as large and as long as the paper's own curves need to
show the effect, and where the difference exceeds the seed noise. Not measurable: our numbers are there, and this size
cannot show the effect. Not measured: runs, a number or hardware are missing. Everything here comes from the {tier}
tier.</p>
<table><thead><tr><th>claim</th><th>in the paper</th><th>the paper</th><th>here</th><th>verdict</th><th>why</th></tr>
</thead><tbody>
{rows}
</tbody></table></body></html>
"""


def collect(results: Path, claims: dict[str, Claim]) -> list[Verdict]:
    """All verdicts in the order of the claims file.

    Raises ValueError naming each claim that is missing, judged twice or unknown, and each unreadable file.
    """
    found: dict[str, list[Verdict]] = {}
    for path in sorted(results.glob("elements/*/claims.json")):
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


def to_markdown(verdicts: list[Verdict]) -> str:
    """check.md: the claims table, ready to stand in a README."""

    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", " ")

    lines = [
        f"# Claims at the {verdicts[0].tier} tier",
        "",
        summary(verdicts),
        "",
        "| claim | statement | the paper | here | verdict | why |",
        "|---|---|---|---|---|---|",
    ]
    for verdict in verdicts:
        where = f"{verdict.claim} ({verdict.element})"
        texts = (where, verdict.statement, verdict.paper, verdict.ours, verdict.verdict, verdict.reason)
        lines.append("| " + " | ".join(cell(text) for text in texts) + " |")
    return "\n".join(lines) + "\n"


def to_page(verdicts: list[Verdict], claims: dict[str, Claim]) -> str:
    """check.html: one file without scripts, fonts or pictures from elsewhere."""
    rows = []
    for verdict in verdicts:
        source = claims[verdict.claim].numbers.get("source", claims[verdict.claim].where)
        cells = [
            f"<b>{html.escape(verdict.claim)}</b><br><small>{html.escape(verdict.element)}, {verdict.kind}</small>",
            f"{html.escape(verdict.statement)}<br><small>{html.escape(str(source))}</small>",
            html.escape(verdict.paper),
            html.escape(verdict.ours),
            f'<span class="verdict" style="color:{_COLORS[verdict.verdict]}">{verdict.verdict}</span>',
            f"<small>{html.escape(verdict.reason)}</small>",
        ]
        rows.append("<tr>" + "".join(f"<td>{text}</td>" for text in cells) + "</tr>")
    tier = verdicts[0].tier
    title = f"Pretraining Large Language Models with NVFP4: claims at the {tier} tier"
    return _PAGE.format(
        title=title, summary=html.escape(summary(verdicts)), tier=html.escape(tier), rows="\n".join(rows)
    )


def summary(verdicts: list[Verdict]) -> str:
    """Counts in words."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    exact = [verdict for verdict in verdicts if verdict.kind == "exact"]
    held = sum(verdict.verdict == REPRODUCED for verdict in exact)
    in_full = {NOT_MEASURABLE: OUT_OF_REACH}
    words = ", ".join(f"{counts[name]} {in_full.get(name, name)}" for name in VERDICTS)
    return f"{len(verdicts)} claims: {words}. Of the {len(exact)} exact claims {held} hold."


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
    parser = argparse.ArgumentParser(
        prog="python -m repro.analysis.check", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--results", type=Path, required=True, help="results folder of a tier, e.g. results/tiny"
    )
    parser.add_argument("--claims", type=Path, default=Path("configs/claims.yaml"), help="the paper's claims")
    given = parser.parse_args(arguments)
    try:
        claims = load_claims(given.claims)
        verdicts = collect(given.results, claims)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    texts = {"json": to_json(verdicts), "md": to_markdown(verdicts), "html": to_page(verdicts, claims)}
    for suffix, text in texts.items():
        temporary = given.results / f".check.writing.{suffix}"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, given.results / f"check.{suffix}")
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
