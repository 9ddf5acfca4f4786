"""Marks that tell about seeds: how other seeds look, their mean and the noise beside the axis, and legend entries.

Means and the bracket of the noise stand right of the axes, where no curve is. Does not: estimate the noise
(repro.analysis.noise), or draw curves (repro.analysis.drawing).
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWN, CARETUP
from matplotlib.path import Path
from matplotlib.transforms import ScaledTranslation, Transform

from repro.analysis.noise import Noise
from repro.analysis.shown import shared_words

#: How further seeds of a run are drawn: dotted, for the paper's faint curves of the same colour are not.
OTHER_SEED = {"lw": 0.9, "ls": (0, (1.0, 1.1))}
_MEAN = {"marker": "D", "ms": 4.5, "mfc": "none", "mew": 1.2, "ls": "none"}
#: Group ids of the means over seeds and of the bracket of the noise, which stand right of the axes, and its colour.
MEAN, NOISE = "mean over seeds", "seed noise"
_NOISE_COLOR = "#444444"
# How far right of the axes the first of them stands, and the bracket from the means (points).
_BESIDE, _BESIDE_MEANS = 7.0, 8.0


def mean_mark(axes: Axes, value: float, color: str) -> None:
    """The mean over seeds of a run, right of the axes: on the curves it would seem a point of one of them."""
    place = _right_of(axes, _BESIDE)
    axes.plot(1, value, mec=color, clip_on=False, transform=place, gid=MEAN, **_MEAN)


def _right_of(axes: Axes, points: float) -> Transform:
    """Of (1, value): as many points right of the axes."""
    return axes.get_yaxis_transform() + ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)


def noise_bracket(axes: Axes, noise: Noise | None) -> list[Line2D]:
    """A bracket right of the axes as far as `noise` reaches to both sides of 0 (%-points), and its entry for the
    legend; none of None.

    An end value inside it is not told apart from none. Nothing is known about the noise elsewhere on a curve. It has
    an arrow where it reaches beyond the axis, and stands right of the means over seeds, so call it when the y-range
    is set and they are drawn.
    """
    if noise is None:
        return []
    limit = noise.limit(1)
    low, high = axes.get_ylim()
    ends = [float(np.clip(end, low, high)) for end in (-limit, limit)]
    has_means = any(line.get_gid() == MEAN for line in axes.lines)
    place = _right_of(axes, _BESIDE + _BESIDE_MEANS * has_means)
    look = {"color": _NOISE_COLOR, "clip_on": False, "transform": place, "gid": NOISE}
    axes.plot([1, 1], ends, lw=1.0, **look)
    inside = (-limit >= low, limit <= high)
    for end, arrow, is_inside in zip(ends, (CARETDOWN, CARETUP), inside, strict=True):
        axes.plot([1], [end], marker="_" if is_inside else arrow, ms=5, **look)
    return [_noise_handle(noise, is_beyond=not all(inside))]


def _noise_handle(noise: Noise, *, is_beyond: bool) -> Line2D:
    points = [(-0.5, 1), (0.5, 1), (0, 1), (0, -1), (-0.5, -1), (0.5, -1)]
    codes = [Path.MOVETO, Path.LINETO, Path.MOVETO, Path.LINETO, Path.MOVETO, Path.LINETO]
    reach = f"±{noise.limit(1):.2g} points; "
    words = f"seed noise of an end value (95 %):\n{reach}a gap inside can't be\ntold from none"
    if noise.dof == 1 and math.isfinite(noise.sd):  # two seeds that end together make it far too small
        words = f"seed noise of an end value (95 %),\nfrom 2 seeds only, which may agree\nby chance: {reach}a gap\n"
        words += "inside can't be told from none"
    words += ";\narrow: beyond the axis" if is_beyond else ""
    look = {"marker": Path(points, codes), "ms": 7, "mfc": "none", "mec": _NOISE_COLOR, "ls": "none"}
    return Line2D([], [], label=words, **look)


def seeds_handles(*, means: bool, marked: Collection[int]) -> list[Line2D]:
    """Name what is drawn of a run with several seeds.

    Args:
        means: thick curves are means over the seeds (repro.analysis.curve_panels.draws_means).
        marked: seeds whose mean stands beside the axes (`mean_mark`); fewer than two have no mark.
    """
    thick, dotted = ("mean over the seeds", "each seed") if means else ("seed 1", "other seeds of a run")
    handles = [
        Line2D([], [], color="#000000", label=f"thick: {thick}"),
        Line2D([], [], color="#000000", label=f"dotted: {dotted}", **OTHER_SEED),
    ]
    if len(marked) > 1:
        words = shared_words(marked).replace("means", "mean")
        handles.append(Line2D([], [], mec="#000000", label=f"{words} at the end", **_MEAN))
    return handles
