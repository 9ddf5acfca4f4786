"""The README's table of claims is that of the records, with links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repro.analysis.readme_claims import write_readme_claims

ROOT = Path(__file__).parents[2]
PAGE = """# Claims

2 claims: 1 reproduced, 1 unresolved.

| claim | statement | the paper | here | verdict | why |
|---|---|---|---|---|---|
| C1 ([fig1](../../figures/fig1.png)) | one \\| two | 1 | 1 | reproduced | as stated |
| C2 (table1) | three | 2 |  | unresolved | nobody knows |
"""
PLACE = "before\n<!-- claims of the proxy tier: written by `make recorded` -->\n{}<!-- end of the claims -->\nafter\n"


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "recorded" / "proxy").mkdir(parents=True)
    (tmp_path / "recorded" / "proxy" / "claims.md").write_text(PAGE)
    (tmp_path / "README.md").write_text(PLACE.format("old\n"))
    return tmp_path


def write(repository: Path, tier: str = "proxy") -> Path | None:
    return write_readme_claims(
        repository / "README.md", repository / "recorded" / "proxy" / "claims.md", tier
    )


def test_the_table_stands_in_its_place_without_reasons_and_is_replaced_the_next_time(repository):
    readme = write(repository)
    text = readme.read_text()
    assert text.startswith("before\n<!-- claims of the proxy tier")
    assert text.endswith("<!-- end of the claims -->\nafter\n")
    assert "Table of the 2 claims: 1 reproduced, 1 unresolved." in text
    # Links lead from the README.
    assert "| C1 ([fig1](figures/fig1.png)) | one \\| two | 1 | 1 | reproduced |\n" in text, (
        "links lead from the README"
    )
    assert "| C2 (table1) | three | 2 |  | unresolved |\n" in text
    assert not re.search("old|why|as stated|nobody knows", text)
    write(repository)
    assert readme.read_text() == text


def test_a_readme_without_a_place_for_the_tier_stays_as_it_is(repository):
    assert write(repository, "tiny") is None
    assert (repository / "README.md").read_text() == PLACE.format("old\n")
    (repository / "README.md").unlink()
    assert write(repository) is None


def test_the_readme_holds_the_records_table(tmp_path):
    """`make recorded` writes it."""
    copy = tmp_path / "README.md"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    copy.write_text(text, encoding="utf-8")
    (tmp_path / "recorded").symlink_to(ROOT / "recorded")
    assert write_readme_claims(copy, tmp_path / "recorded" / "proxy" / "claims.md", "proxy") == copy
    assert copy.read_text(encoding="utf-8") == text, "README.md lags behind recorded/proxy: make recorded"
    for place in re.findall(r"\]\((paper_figures/[^)]+)\)", text):
        assert (ROOT / place).is_file(), place
