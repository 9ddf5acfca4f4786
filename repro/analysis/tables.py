"""Tables of display strings, drawn as a picture. Does not: decide what stands in a table."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from repro.analysis import drawing
from repro.analysis.markdown import HEADING


def table_figure(
    table: pd.DataFrame,
    *,
    title: str,
    lines: Sequence[str],
    subtitle: str = "",
    widths: Mapping[str, int] | None = None,
) -> Figure:
    """The table as a picture: a rule under the head, no vertical lines, first column left and the others centred.

    Args:
        widths: most characters a line of a column; longer cells are wrapped.
        lines: provenance below.
        subtitle: a line below the title.
    """
    widths = widths or {}
    head = ["\n".join(textwrap.wrap(str(name), widths.get(name, 40))) for name in table.columns]
    body = [
        [
            "\n".join(_wrap(str(value), widths.get(name, 40)))
            for name, value in zip(table.columns, row, strict=True)
        ]
        for row in table.itertuples(index=False)
    ]
    columns = [
        max(len(line) for row in [head, *body] for line in row[i].removeprefix(HEADING).split("\n"))
        for i in range(len(head))
    ]
    # Inches: a character of 7 pt text is about 0.062 wide, a line 0.145 high.
    lefts, x = [], 0.12
    for width in columns:
        lefts.append(x)
        x += 0.062 * width + 0.22
    heights = [0.145 * max(cell.count("\n") + 1 for cell in row) + 0.07 for row in [head, *body]]
    total_width = max(x, 3.6)
    wrapped = [piece for line in lines for piece in textwrap.wrap(line, int(total_width * 23.5))]
    head_height = 0.42 + (0.16 if subtitle else 0)
    total_height = sum(heights) + head_height + 0.13 + 0.105 * len(wrapped) + 0.12
    figure = Figure(figsize=(total_width, total_height))
    drawing.FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, total_width), ylim=(0, total_height))
    axes.axis("off")
    axes.text(0.12, total_height - 0.12, title, va="top", fontsize=10, fontweight="bold")
    axes.text(0.12, total_height - 0.34, subtitle, va="top", fontsize=drawing.SUBTITLE)
    y = total_height - head_height
    for number, (row, height) in enumerate(zip([head, *body], heights, strict=True)):
        heading = row[0].startswith(HEADING)
        if heading:
            axes.axhspan(y - height, y, xmin=0.01, xmax=0.99, color="#f1f1f1", lw=0)
        for i, (left, width, cell) in enumerate(zip(lefts, columns, row, strict=True)):
            centre = i > 0
            axes.text(
                left + (0.031 * width if centre else 0),
                y - height / 2,
                cell.removeprefix(HEADING),
                ha="center" if centre else "left",
                va="center_baseline",  # letters with and without descenders stand on one line
                fontsize=7,
                fontweight="bold" if number == 0 or heading else "normal",
                color="black",
                linespacing=1.25,
            )
        y -= height
        if number in (0, len(body)):
            axes.plot([0.1, total_width - 0.1], [y, y], color="black", lw=0.8)
    axes.text(0.12, 0.05, "\n".join(wrapped), va="bottom", fontsize=5.6, color="#555555")
    return figure


def _wrap(text: str, width: int) -> list[str]:
    return [piece for line in text.split("\n") for piece in (textwrap.wrap(line, width) or [""])]
