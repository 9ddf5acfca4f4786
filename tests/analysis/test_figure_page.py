"""All figures and tables on one page of Markdown: recorded/<tier>/figures.md."""

from __future__ import annotations

import re
from pathlib import Path

from repro.analysis.figure_page import write_figure_page
from repro.analysis.verdicts import UNRESOLVED, Verdict
from repro.experiments.elements import load_elements

ROOT = Path(__file__).resolve().parents[2]


def test_an_element_shows_its_picture_or_its_table_and_its_verdicts(tmp_path):
    figures, results, kept = (tmp_path / name for name in ("figures", "results", "kept"))
    for name, title in (("fig1", "A"), ("fig10", "B"), ("table3", "C")):
        (figures / name / "recorded").mkdir(parents=True)
        (figures / name / "paper.yaml").write_text(f"title: {title}\ncaption: of {title}\n", encoding="utf-8")
    (figures / "fig10" / "recorded" / "tiny.png").write_bytes(b"")
    (results / "elements" / "table3").mkdir(parents=True)
    (results / "elements" / "table3" / "table.md").write_text("# C\n\n| x |\n|---|\n", encoding="utf-8")
    (figures / "mine").mkdir()
    (figures / "mine" / "paper.yaml").write_text("title: M\nsource: own\n", encoding="utf-8")
    verdict = Verdict("C1", "fig10", "order", "a|b", "2", "3", UNRESOLVED, "why", "tiny")
    kept.mkdir()
    (kept / "claims.md").write_text("# Claims\n\nOne claim.\n\n| claim |\n|---|\n", encoding="utf-8")
    page = write_figure_page("tiny", results, kept / "claims.md", figures, [verdict])
    assert page == kept / "figures.md"
    head, fig1, fig10, table3 = page.read_text(encoding="utf-8").split("<a id=")
    assert "\n\nOne claim.\n\n" in head
    assert "| [B](#fig10) | C1 unresolved |\n| [C](#table3) |  |\n" in head
    assert (
        "## A\n\nNo number of a recorded run is in it; `snakemake --cores 2 fig1` draws it.\n\nof A\n" in fig1
    )
    assert "## B\n\n![fig10](../figures/fig10/recorded/tiny.png)\n\nof B\n\n| claim |" in fig10
    assert "| C1 | a\\|b | 2 | 3 | unresolved |\n" in fig10
    assert "## C\n\n| x |\n|---|\n\nof C\n" in table3


def test_the_proxy_tiers_page_has_every_element_and_the_verdicts_of_its_claims_page():
    folder = ROOT / "recorded" / "proxy"
    text = (folder / "figures.md").read_text(encoding="utf-8")
    assert re.findall(r'<a id="(\w+)">', text) == [
        name for name, element in load_elements(ROOT / "paper_figures").items() if element.source != "own"
    ]
    assert "](recorded/proxy/figures.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = {(folder / place).resolve() for place in re.findall(r"!\[\w+\]\((.+?)\)", text)}
    assert pictures == set((ROOT / "paper_figures").glob("*/recorded/proxy.png"))
    claims = (folder / "claims.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| (\w+) \(.*\| ([a-z ]+) \| [^|]*\|$", claims, re.MULTILINE))
    shown = dict(re.findall(r"^\| (C\w+|T\d) \|.*\| ([a-z ]+) \|$", text, re.MULTILINE))
    assert len(told) >= 38
    assert shown == told
