"""Every figure and table of a tier on one page of Markdown: its published picture, its caption, its verdicts.

    recorded/<tier>/figures.md    in the words of claims.md, without scripts: for a reader of the repository

An element without a published picture (no number of a run is in it) shows its table, or names the command that draws
it. Does not: copy pictures (repro.analysis.published does), say why a verdict is what it is (claims.md does).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from repro.analysis.markdown import markdown_table
from repro.analysis.verdicts import Verdict
from repro.experiments.elements import Element, load_elements

FIGURE_PAGE = "figures.md"
_COLUMNS = ("claim", "statement", "the paper", "here", "verdict")
_KEYS = ("claim", "statement", "paper", "ours", "verdict")


def write_figure_page(
    tier: str, results: Path, claims_page: Path, figures: Path, judged: Iterable[Verdict]
) -> Path:
    """Write the page beside `claims_page`, the published claims.md, whose verdicts are `judged`.

    Its pictures lie below `figures`, whose own elements (source: own) are left out.
    """
    verdicts: dict[str, list[Verdict]] = {}
    for verdict in judged:
        verdicts.setdefault(verdict.element, []).append(verdict)
    elements = {name: e for name, e in load_elements(figures).items() if e.source != "own"}
    parts = [
        f"# Figures and tables at the {tier} tier",
        *_words(claims_page),
        f"Why each verdict is what it is: [{claims_page.name}]({claims_page.name}).",
        markdown_table(("figure or table", "verdicts"), [_entry(e, verdicts) for e in elements.values()]),
    ]
    for name, element in elements.items():
        parts += [f'<a id="{name}"></a>', f"## {element.title}"]
        parts += [_shown(name, tier, results, claims_page.parent, figures), element.caption]
        if name in verdicts:
            rows = [[getattr(verdict, key) for key in _KEYS] for verdict in verdicts[name]]
            parts.append(markdown_table(_COLUMNS, rows))
    page = claims_page.with_name(FIGURE_PAGE)
    page.write_text("\n\n".join(part.strip() for part in parts if part) + "\n", encoding="utf-8")
    return page


def _words(claims_page: Path) -> list[str]:
    """What claims.md says between its title and its table: counts, how to read numbers and verdicts, which runs."""
    _, *paragraphs = claims_page.read_text(encoding="utf-8").split("\n\n")
    return [text for text in paragraphs if not text.startswith("|")]


def _entry(element: Element, verdicts: dict[str, list[Verdict]]) -> tuple[str, str]:
    """The element's line in the list at the head of the page."""
    found = [f"{verdict.claim} {verdict.verdict}" for verdict in verdicts.get(element.name, [])]
    return f"[{element.title}](#{element.name})", ", ".join(found)


def _shown(name: str, tier: str, results: Path, page_folder: Path, figures: Path) -> str:
    """The element's published picture; without one its table, or how to draw it."""
    picture = figures / name / "recorded" / f"{tier}.png"
    if picture.is_file():
        return f"![{name}]({Path(os.path.relpath(picture, page_folder)).as_posix()})"
    table = results / "elements" / name / "table.md"
    if table.is_file():
        return table.read_text(encoding="utf-8").partition("\n")[2]  # without its title
    return f"No number of a recorded run is in it; `snakemake --cores 2 {name}` draws it."
