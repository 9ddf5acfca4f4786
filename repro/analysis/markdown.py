"""A table of texts as GitHub Markdown. Needs nothing but Python: the command line imports it.

Does not: decide what stands in a table, or read one back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# A row whose first cell starts with this mark is a heading over the rows below it.
HEADING = "§"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lines of a table with a line break at the end; headings in bold, line breaks kept, pipes escaped."""
    lines = [_line(columns), "|" + "---|" * len(columns)]
    for row in rows:
        heading = str(row[0]).startswith(HEADING)
        lines.append(_line([_bold(str(cell)) for cell in row] if heading else row))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"


def _bold(cell: str) -> str:
    return f"**{cell.removeprefix(HEADING)}**" if cell else ""
