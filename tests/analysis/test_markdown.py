"""Texts as a GitHub table."""

from __future__ import annotations

from repro.analysis.markdown import HEADING, markdown_table


def test_pipes_and_line_breaks_stay_inside_their_cell() -> None:
    table = markdown_table(("claim", "why"), [("C1", "a | b\nc")])
    assert table == "| claim | why |\n|---|---|\n| C1 | a \\| b<br>c |\n"


def test_a_heading_is_bold_and_its_empty_cells_stay_empty() -> None:
    (heading,) = markdown_table(("task", "FP8"), [(f"{HEADING}Code", "")]).splitlines()[2:]
    assert heading == "| **Code** |  |"


def test_a_table_without_rows_has_its_head() -> None:
    assert markdown_table(("task",), []) == "| task |\n|---|\n"
