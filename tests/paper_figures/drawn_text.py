"""What a figure hides: its texts and legends as boxes in pixels, against each other, its curves and its own edge."""

from __future__ import annotations

from itertools import combinations
from unittest.mock import patch

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from repro.analysis.places import line_points

#: Pixels (of 1/100 inch) by which boxes of glyphs may touch: ascenders and descenders that are not there.
TOUCH = 1.5


def drawn_texts(figure: Figure) -> list[Text]:
    """The texts that a drawing puts on paper, tick labels included."""
    seen: list[Text] = []
    draw = Text.draw

    def remember(self: Text, renderer, *args, **kwargs) -> None:
        if self.get_visible() and self.get_text().strip() and self not in seen:
            seen.append(self)
        draw(self, renderer, *args, **kwargs)

    with patch.object(Text, "draw", remember):
        figure.canvas.draw()
    return seen


def collisions(figure: Figure) -> list[str]:
    """In words: texts that overlap or leave the figure, and texts and legends that lie on a curve."""
    texts = drawn_texts(figure)
    renderer = figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in texts]
    found = []
    for text, box in zip(texts, boxes, strict=True):
        if not figure.bbox.padded(0.5).contains(*box.min) or not figure.bbox.padded(0.5).contains(*box.max):
            found.append(f"{text.get_text()!r} leaves the figure")
    for (one, box), (other, second) in combinations(list(zip(texts, boxes, strict=True)), 2):
        if box.padded(-TOUCH).overlaps(second.padded(-TOUCH)):
            found.append(f"{one.get_text()!r} lies on {other.get_text()!r}")
    covers = [(text.get_text(), box) for text, box in zip(texts, boxes, strict=True)]
    covers += [("a legend", legend.get_window_extent(renderer)) for legend in figure.findobj(Legend)]
    for axes in all_axes(figure):
        points = [line_points(line) for line in axes.lines if line.get_visible() and axes.get_visible()]
        for line in points:
            found += [
                f"{name!r} lies on a curve of {title(axes)}" for name, box in covers if covered(line, box)
            ]
    return found


def all_axes(figure: Figure) -> list[Axes]:
    """Axes and their insets; no secondary axes, which have no curves."""
    return [
        *figure.axes,
        *(part for axes in figure.axes for part in axes.child_axes if isinstance(part, Axes)),
    ]


def covered(points: np.ndarray, box: Bbox) -> bool:
    """Whether a point [N, 2] lies inside the box."""
    return bool(((points > box.min) & (points < box.max)).all(axis=1).any())


def title(axes: Axes) -> str:
    return axes.get_title(loc="left") or axes.get_title() or axes.get_ylabel() or "an inset"
