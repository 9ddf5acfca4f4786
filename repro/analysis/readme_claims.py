"""The claims table of a tier's records in the README, without reasons, between two comments that name the tier.

    <!-- claims of the proxy tier: written by `make recorded` -->
    <details> ... </details>
    <!-- end of the claims -->

What stands between the comments is replaced; a README without them, or with those of another tier, stays as it is.

Read from claims.md and not from the results it was made of: both files are in the repository, so a test can say that
one lags behind the other. Does not: judge, or say why (recorded/<tier>/claims.md does).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_BLOCK = "<!-- claims of the {tier} tier: written by `make recorded` -->\n"
_END = "<!-- end of the claims -->\n"
#: claim (with its picture), statement, the paper, here, verdict; the last column, why, is left out.
_COLUMNS = 5


def write_readme_claims(readme: Path, claims: Path, tier: str) -> Path | None:
    """Puts the table of `claims` (recorded/<tier>/claims.md) into `readme`; gives it if it has a place for that."""
    if not readme.is_file():
        return None
    text, start = readme.read_text(encoding="utf-8"), _BLOCK.format(tier=tier)
    before, found, rest = text.partition(start)
    _, ends, after = rest.partition(_END)
    if not (found and ends):
        return None
    table = _table(claims.read_text(encoding="utf-8"), claims.parent, readme.parent)
    readme.write_text(f"{before}{start}{table}{_END}{after}", encoding="utf-8")
    return readme


def _table(page: str, folder: Path, target: Path) -> str:
    """The page's counts and rows as they stand in a README in `target`; its links lead from `folder`."""
    lines = page.splitlines()
    (counts,) = (line for line in lines if re.match(r"\d+ claims: ", line))
    rows = [re.split(r"(?<!\\) \| ", line.strip("| "))[:_COLUMNS] for line in lines if line.startswith("| ")]

    def link(found: re.Match[str]) -> str:
        return f"]({Path(os.path.relpath(folder / found[1], target)).as_posix()})"

    told = [re.sub(r"\]\(([^)]+)\)", link, f"| {' | '.join(row)} |") for row in rows]
    told.insert(1, "|---" * _COLUMNS + "|")
    summary = f"<details><summary>Table of the {counts}</summary>"
    return "\n".join(["", summary, "", *told, "", "</details>", "", ""])
