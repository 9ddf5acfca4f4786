"""Where the label of an excursion beyond an axis stands: as near to it as it hides no curve, legend or other label.

Works in pixels, so it needs the layout: repro.analysis.drawing.finish calls it last, when nothing moves any more.
Only texts marked with EXCURSION move; they stay at their edge of the axes, or rows above (below) it.

Does not: choose what a label says, or move a legend.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox

#: Group id of the texts that may move.
EXCURSION = "excursion beyond the axis"
# Pixels (of 1/100 inch): room around a label, and the grid of places that are tried.
_ROOM, _STEP = 4.0, 3.0
# A label moves along its edge rather than away from it, and stays within reach of the excursion that it tells of.
_AWAY, _REACH = 1.5, 70.0


def settle_labels(figure: Figure) -> None:
    """Moves every excursion label of the figure to the nearest free place within reach; where none is free there, to
    the emptiest, with a white rim that keeps it legible on curves."""
    labels = [text for axes in figure.axes for text in axes.texts if text.get_gid() == EXCURSION]
    if not labels:
        return
    figure.draw_without_rendering()
    for text in labels:
        _settle(text, figure.canvas.get_renderer())


def line_points(line: Line2D, *, spacing: float = 1.0) -> np.ndarray:
    """Points along a drawn line in pixels [N, 2], at most `spacing` apart where it lies inside its axes.

    A line without a stroke has its markers alone; what is not finite is a gap.
    """
    points = line.get_transform().transform(np.asarray(line.get_xydata(), dtype=float))
    box = line.axes.bbox.padded(1.0)
    if line.get_linestyle() not in ("None", " ", ""):
        parts = [_between(a, b, box, spacing) for a, b in pairwise(points) if np.isfinite([a, b]).all()]
        points = np.concatenate([points, *parts])
    points = points[np.isfinite(points).all(axis=1)]
    inside = (points >= [box.x0, box.y0]).all(axis=1) & (points <= [box.x1, box.y1]).all(axis=1)
    return points[inside]


def _between(a: np.ndarray, b: np.ndarray, box: Bbox, spacing: float) -> np.ndarray:
    """Points of the segment from a to b inside the box."""
    low, high, step = 0.0, 1.0, b - a
    for start, change, least, most in zip(a, step, box.min, box.max, strict=True):
        if change:
            first, last = sorted(((least - start) / change, (most - start) / change))
            low, high = max(low, first), min(high, last)
        elif not least <= start <= most:
            return np.empty((0, 2))
    if low > high:
        return np.empty((0, 2))
    number = int(np.hypot(*step) * (high - low) / spacing) + 2
    return a + np.linspace(low, high, number)[:, None] * step


def _settle(text: Text, renderer: RendererBase) -> None:
    axes, own = text.axes, text.get_window_extent(renderer)
    points = np.concatenate([np.empty((0, 2)), *(line_points(line) for line in axes.lines)])
    boxes = [other.get_window_extent(renderer) for other in axes.texts if other is not text]
    if axes.get_legend():
        boxes.append(axes.get_legend().get_window_extent(renderer))
    up = 1 if text.get_va() == "bottom" else -1
    places = _places(axes, own, up)
    away = [np.hypot(place.x0 - own.x0, _AWAY * (place.y0 - own.y0)) for place in places]
    near = [i for i in range(len(places)) if away[i] <= max(_REACH, min(away))]
    hidden = {i: _num_hidden(places[i].padded(_ROOM), points, boxes) for i in near}
    found = min(near, key=lambda i: (hidden[i], away[i]))
    if hidden[found]:
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
    best = places[found]
    corner = (best.x0 + best.width / 2, best.y0 if up > 0 else best.y1)
    text.set_position(axes.transData.inverted().transform(corner))


def _places(axes: Axes, own: Bbox, up: int) -> list[Bbox]:
    """Where the label could stand: along its edge, and in rows of its height up to the middle of the axes."""
    inner = axes.bbox.padded(-_ROOM)
    first = inner.y0 if up > 0 else inner.y1 - own.height
    rows = np.arange(first, first + up * inner.height / 2, up * own.height / 2)
    lefts = np.append(np.arange(inner.x0, inner.x1 - own.width, _STEP), own.x0)
    lefts = lefts.clip(inner.x0, max(inner.x0, inner.x1 - own.width))
    return [Bbox.from_bounds(left, row, own.width, own.height) for row in rows for left in lefts]


def _num_hidden(place: Bbox, points: np.ndarray, boxes: list[Bbox]) -> int:
    """Pixels of curves under a place, and as many again for each box that it touches."""
    inside = (points > place.min).all(axis=1) & (points < place.max).all(axis=1)
    return int(inside.sum()) + 1000 * sum(place.overlaps(box) for box in boxes)
