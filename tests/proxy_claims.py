"""Cells of the proxy tier's page of claims, as tests of pages that quote them read them."""

from __future__ import annotations

import re

from readme_text import claims_table

SAID, ROWS = claims_table("recorded/proxy/claims.md")
PAPER, HERE = ({row[0]: row[column] for row in ROWS} for column in (2, 3))


def arms(text: str) -> dict[str, str]:
    """'a -0.1 > b -0.2, c -0.3' as {a: -0.1, ...}."""
    return dict(re.findall(r"(?:^|> |= |, )([^>=,]+?) ([+-][\d.]+)(?= %| >| =| \[|,| \(|$)", text))


def drawn(claim: str) -> str:
    return re.search(r"drawn ([+-][\d.]+)", PAPER[claim])[1]


def drawn_pair(claim: str) -> tuple[str, str]:
    return re.search(r"drawn ([+-][\d.]+), ([+-][\d.]+)", PAPER[claim]).groups()


def number(claim: str) -> str:
    return re.search(r"[+-][\d.]+$", HERE[claim])[0]
