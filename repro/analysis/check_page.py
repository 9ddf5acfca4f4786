"""The claims table as Markdown and as a page, its counts in words, and the first page of the report.

Texts that need nothing from elsewhere; links lead to the pictures below the same results folder. Does not: collect
verdicts (repro.analysis.check) or judge.
"""

from __future__ import annotations

import csv
import html
from collections import Counter
from pathlib import Path

from repro.analysis.claims_file import Claim
from repro.analysis.markdown import markdown_table
from repro.analysis.rules import OUT_OF_REACH
from repro.analysis.verdicts import (
    CONTRADICTED,
    NOT_MEASURABLE,
    NOT_MEASURED,
    REPRODUCED,
    UNRESOLVED,
    VERDICTS,
    Verdict,
    human,
)

_COLORS = {
    REPRODUCED: "#009E73",
    CONTRADICTED: "#D55E00",
    UNRESOLVED: "#8a6d00",
    NOT_MEASURABLE: "#0072B2",
    NOT_MEASURED: "#6b6b6b",
}
_TITLE = "Pretraining Large Language Models with NVFP4"
_NUMBERS = (
    "Numbers without another unit are gaps, (baseline - run) / baseline in per cent of the loss: negative is worse "
    "than the baseline. a > b: a ends better than b; a = b: the paper calls the two equal; drawn: read off its "
    "curve. [a, b]: the 95 % interval over the run's or the pair's own seeds, and where there is one, by the scatter "
    "of other runs' seeds; several of one claim hold together (Bonferroni). No interval: nothing was repeated, or "
    "the number is not judged by itself; of an order the differences have one."
)
_VERDICTS = (
    "Each claim has a reach, set before the proxy tier was trained: the least size and horizon at which the paper's "
    "own curves show the effect. Reproduced and contradicted are differences beyond the noise that the reason names "
    "(of seeds; in C7a, C7b and C21 of one run's points or blocks), unresolved ones inside it. A horizon shorter "
    "than the reach can confirm an order (earlier than in the paper), not refute it. "
    "Not measurable: our numbers are there, and this size can't show the effect or its absence. Not measured: runs, "
    "a number or hardware are missing."
)
_LINKS = "A figure's or table's name leads to its picture (in the report: its sections Figures and Tables)."
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
{words}
<table><thead><tr><th>claim</th><th>in the paper</th><th>the paper</th><th>here</th><th>verdict</th><th>why</th></tr>
</thead><tbody>
{rows}
</tbody></table></body></html>
"""


def to_markdown(verdicts: list[Verdict], results: Path) -> str:
    """check.md: the claims table, ready to stand in a README."""
    lines = [f"# Claims at the {verdicts[0].tier} tier", ""]
    for words in (summary(verdicts), _NUMBERS, _VERDICTS, sources(verdicts, results)):
        lines += [words, ""]
    rows = []
    for verdict in verdicts:
        picture = _picture(verdict, results)
        where = f"{verdict.claim} ({f'[{verdict.element}]({picture})' if picture else verdict.element})"
        rows.append((where, verdict.statement, verdict.paper, verdict.ours, verdict.verdict, verdict.reason))
    columns = ("claim", "statement", "the paper", "here", "verdict", "why")
    return "\n".join([*lines, markdown_table(columns, rows)])


def to_page(verdicts: list[Verdict], claims: dict[str, Claim], results: Path) -> str:
    """check.html: one file without scripts, fonts or pictures from elsewhere."""
    rows = []
    for verdict in verdicts:
        source = claims[verdict.claim].numbers.get("source", claims[verdict.claim].where)
        element, picture = html.escape(verdict.element), _picture(verdict, results)
        element = f'<a href="{picture}">{element}</a>' if picture else element
        cells = [
            f"<b>{html.escape(verdict.claim)}</b><br><small>{element}, {verdict.kind}</small>",
            f"{html.escape(verdict.statement)}<br><small>{html.escape(str(source))}</small>",
            html.escape(verdict.paper),
            html.escape(verdict.ours),
            f'<span class="verdict" style="color:{_COLORS[verdict.verdict]}">{verdict.verdict}</span>',
            f"<small>{html.escape(verdict.reason)}</small>",
        ]
        rows.append("<tr>" + "".join(f"<td>{text}</td>" for text in cells) + "</tr>")
    title = f"{_TITLE}: claims at the {verdicts[0].tier} tier"
    words = (summary(verdicts), _NUMBERS, _VERDICTS, f"{sources(verdicts, results)} {_LINKS}")
    paragraphs = "\n".join(f"<p>{html.escape(text)}</p>" for text in words)
    return _PAGE.format(title=title, words=paragraphs, rows="\n".join(rows))


def to_landing(verdicts: list[Verdict], results: Path) -> str:
    """landing.rst: what stands on the report's first page, in reStructuredText."""
    title = f"{_TITLE}, reproduced: the {verdicts[0].tier} tier"
    parts = [
        f"{title}\n{'=' * len(title)}",
        sources(verdicts, results),
        summary(verdicts),
        _VERDICTS,
        "*0 Claims* on the left is the table of claims with the reasons; *1 Figures* and *2 Tables* show our curves "
        "and numbers beside those of arXiv 2509.25149.",
    ]
    return "\n\n".join(parts) + "\n"


def summary(verdicts: list[Verdict]) -> str:
    """Counts in words."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    exact = [verdict for verdict in verdicts if verdict.kind == "exact"]
    held = sum(verdict.verdict == REPRODUCED for verdict in exact)
    in_full = {NOT_MEASURABLE: OUT_OF_REACH}
    words = ", ".join(f"{counts[name]} {in_full.get(name, name)}" for name in VERDICTS)
    return f"{len(verdicts)} claims: {words}. Of the {len(exact)} exact claims {held} hold."


def sources(verdicts: list[Verdict], results: Path) -> str:
    """What the claims are judged on, by kind: arithmetic, hardware, and which runs."""
    exact, hardware = (
        ", ".join(verdict.claim for verdict in verdicts if verdict.kind == kind)
        for kind in ("exact", "hardware")
    )
    tier = verdicts[0].tier
    sizes = sorted(size for verdict in verdicts if (size := verdict.numbers.get("parameters")))
    models = " to ".join(dict.fromkeys(human(size) for size in (sizes[0], sizes[-1]))) if sizes else ""
    stand_in = " that stand for the paper's" if tier != "paper" else ""
    models = f", models of {models} parameters{stand_in}" if models else ""
    seeds = {0: "", 1: ", one seed of each run"}.get(
        most := _most_seeds(results), f", up to {most} seeds of a run"
    )
    words = f"Judged on the runs of the {tier} tier{models}{seeds}."
    if exact:
        words += f" Exact claims ({exact}) are arithmetic of formats and shapes, the same at every tier."
    return words + (f" {hardware}: rates of a GPU." if hardware else "")


def _picture(verdict: Verdict, results: Path) -> str:
    """The element's picture, relative to the results folder; "" where there is none."""
    path = Path("elements") / verdict.element / "figure.png"
    return path.as_posix() if (results / path).is_file() else ""


def _most_seeds(results: Path) -> int:
    """The most seeds that a run in the tables of the elements has; 0 without a table of runs."""
    most = 0
    for path in results.glob("elements/*/data.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                most = max(most, int(float(row.get("replica") or 0)))
    return most
