"""The README by sections, and the pages of claims as rows: what tests of their numbers read."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Text from a heading to the next one, without the table of claims, which is written by a program."""
    text = README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.sub(r"<!-- claims of .*?<!-- end of the claims -->\n", "", text, flags=re.DOTALL)


def proxy_words() -> str:
    """What README and docs/proxy_results.md say of the proxy tier's runs, with single spaces."""
    page = (ROOT / "docs" / "proxy_results.md").read_text(encoding="utf-8")
    return " ".join(f"{section('The proxy tier so far')}\n{page}".split())


def claims_table(path: str) -> tuple[str, list[list[str]]]:
    """Summary and rows of a page of claims; a row is its claim's id, statement, the paper, here, verdict, ..."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    (said,) = [line for line in lines if re.match(r"\d+ claims: ", line)]
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    return said, [[row[0].partition(" ")[0], *row[1:]] for row in rows]
