"""What all figures share: colours, axes in tokens and per cent of the horizon, the paper's curves, title and legend.

The x-axis is the per cent of the horizon, the one axis that our tier and the paper have in common; a second axis on
top shows our tokens. The paper's curves lie faintly behind ours where both are of the same order; where scales differ
(a loss of another tokenizer, a range more than OVERLAY_FACTOR apart) they get a panel of their own beside it.
Figures are made without pyplot: no global state, and a quicker start. Not here: the words that say where the numbers
come from (repro.analysis.source_lines). Does not: compute, or read files.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from repro.analysis.palette import MARKERS, PALETTE
from repro.analysis.paper import Series
from repro.analysis.places import settle_labels
from repro.analysis.readings import smooth
from repro.analysis.seed_marks import OTHER_SEED
from repro.analysis.shown import seeds_of
from repro.analysis.verdicts import human

PAPER_NAME = "arXiv 2509.25149"
OVERLAY_FACTOR = 8.0
# The y-range comes from what lies after this share of the horizon: early transients would flatten all else. Gaps
# settle later than losses; how far they go beyond the axis is noted (repro.analysis.curve_panels.beyond_axis).
SETTLED = {"loss": 0.1, "gap": 0.25}
#: What lasts for less than half of this share of a curve's points is a spike: a running median does not see it.
SPIKE = 0.02
# Curves with fewer points than this show them as dots.
DOTS_BELOW = 60
#: Points of the line below the title.
SUBTITLE = 7.5
# The space between a number and its unit, and that after what takes a number.
_WITH_ITS_NUMBER = re.compile(
    r"(?<=\d) (?=%|(?:points?|degrees?|seeds?|runs|times|nats|tokens|parameters)\b)|(?<=\bsd) (?=\d)"
)
_FAINT = 0.4
_BAND = 0.15
# Length of the lines in a legend and room between its columns, in its font size. In a figure of one panel, which is
# narrower than so many inches, long entries take all of the width.
_HANDLE, _BETWEEN, _BETWEEN_NARROW, _NARROW = 2.8, 1.6, 0.8, 6.0


def new_figure(width: float, height: float) -> Figure:
    """A figure (inches) with room for the title above and the provenance below."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def finish(figure: Figure, title: str, lines: Sequence[str], subtitle: str = "") -> Figure:
    """Adds title, subtitle and, small at the bottom, the lines of provenance, and settles labels; call it last."""
    width, height = figure.get_size_inches()
    title_lines = textwrap.wrap(title, int(width * 12.7))
    wrapped = [piece for line in lines for piece in _wrapped(line, int(width * 22.5))]
    bottom = (0.105 * len(wrapped) + 0.08) / height
    for box in figure.legends:
        box.set_bbox_to_anchor((0.5, bottom))
        bottom += (
            box.get_window_extent(figure.canvas.get_renderer()).height / (height * figure.dpi) + 0.04 / height
        )
    title_height = 0.17 * len(title_lines)
    top = (title_height + (0.15 if subtitle else 0) + 0.12) / height
    figure.get_layout_engine().set(rect=(0, bottom, 1, 1 - bottom - top))
    left = 0.08 / width
    figure.text(left, 1 - 0.06 / height, "\n".join(title_lines), va="top", fontsize=9, fontweight="bold")
    if subtitle:
        figure.text(left, 1 - (0.06 + title_height) / height, subtitle, va="top", fontsize=SUBTITLE)
    figure.text(left, 0.04 / height, "\n".join(wrapped), va="bottom", fontsize=5.6, color="#555555")
    _wrap_y_labels(figure)
    settle_labels(figure)
    return figure


def _wrapped(line: str, width: int) -> list[str]:
    """Lines of at most `width` letters, without a break between a number and its unit, or what it is of."""
    kept = _WITH_ITS_NUMBER.sub("\N{NO-BREAK SPACE}", line)
    return [piece.replace("\N{NO-BREAK SPACE}", " ") for piece in textwrap.wrap(kept, width)]


def _wrap_y_labels(figure: Figure) -> None:
    """Breaks the y-labels that are about as long as their axes, before the unit or after the comma: else they run
    along the next panel."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        label = axes.yaxis.label
        if label.get_window_extent().height > 0.9 * axes.bbox.height:  # which labels of two lines make lower
            label.set_text(label.get_text().replace(", ", ",\n").replace(" (nats", "\n(nats"))


def horizon_axes(
    axes: Axes, horizon_tokens: float, *, start: float = 0.0, end: float = 1.0, paper: bool = False
) -> None:
    """Per cent of the horizon below, tokens above."""
    axes.set_xlim(100 * start, 100 * end + 0.8 * (end - start))  # room for a dot at the end
    axes.set_xlabel("per cent of the horizon")
    top = axes.secondary_xaxis(
        "top", functions=(lambda x: x / 100 * horizon_tokens, lambda t: t / horizon_tokens * 100)
    )
    top.set_xlabel("tokens, the paper's" if paper else "tokens of this tier", fontsize=7, color="#555555")
    top.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: human(tokens) if tokens else "0"))
    top.tick_params(labelsize=6.5, colors="#555555", length=2)


def curve(
    axes: Axes,
    rows: pd.DataFrame,
    series: Series,
    *,
    label: str | None = None,
    smoothing: int = 1,
    other_seed: bool = False,
) -> None:
    """One of our curves: rows with fraction and value; a cross where it diverged. `other_seed`: not the first."""
    rows = rows.sort_values("fraction")
    values = smooth(rows["value"], smoothing)
    marker = MARKERS[series.color] if values.notna().sum() < DOTS_BELOW and not other_seed else ""
    color = PALETTE[series.color]
    look = {**OTHER_SEED, "zorder": 2.5} if other_seed else {"ls": series.dash, "zorder": 3}
    axes.plot(100 * rows["fraction"], values, color=color, marker=marker, label=label, **look)
    if (rows["status"] == "diverged").all():
        finite = values.dropna()
        height = finite.iloc[-1] if len(finite) else np.mean(axes.get_ylim())
        size = 5 if other_seed else 8
        axes.plot(
            100 * rows["fraction"].max(), height, marker="X", ms=size, color=color, mec="white", zorder=4
        )


def paper_curve(
    axes: Axes, rows: pd.DataFrame, series: Series, *, faint: bool, label: str | None = None
) -> None:
    """One of the paper's curves, faint behind ours or full in a panel of its own."""
    axes.plot(
        100 * rows["fraction"],
        rows["value"],
        color=PALETTE[series.color],
        ls=series.dash,
        lw=1.0 if faint else 1.2,
        alpha=_FAINT if faint else 1.0,
        label=label,
        zorder=1,
    )


def settled_range(parts: Sequence[pd.DataFrame], *, start: float) -> tuple[float, float] | None:
    """Range of the finite values after `start` over several curves; None without any.

    Of each curve the running median over SPIKE of its points: single spikes, which are drawn as far as the axis
    reaches, shall not flatten the rest. A curve of few points, ours of validation losses, is taken as it is.
    """
    ranges = []
    for curve_of_seed in [own for part in parts for own in seeds_of(part)]:
        own = curve_of_seed.sort_values("fraction")
        values = own["value"].astype(float).where(lambda value: np.isfinite(value))
        width = max(1, round(SPIKE * len(own)) // 2 * 2 + 1)
        values = values.rolling(width, center=True, min_periods=1).median()[own["fraction"] >= start].dropna()
        if len(values):
            ranges.append(values)
    if not ranges:
        return None
    return min(float(values.min()) for values in ranges), max(float(values.max()) for values in ranges)


def same_order(ours: tuple[float, float] | None, papers: tuple[float, float] | None) -> bool:
    """Whether two value ranges can share one axis: widths within OVERLAY_FACTOR, and they touch or nearly do."""
    if ours is None or papers is None:
        return False
    widths = [max(high - low, 1e-9) for low, high in (ours, papers)]
    union = max(ours[1], papers[1]) - min(ours[0], papers[0])
    return union <= OVERLAY_FACTOR * min(widths)


def set_range(axes: Axes, *ranges: tuple[float, float] | None) -> None:
    """y-limits that hold the given ranges with a twelfth of room on both sides."""
    known = [found for found in ranges if found is not None]
    if not known:
        return
    low, high = min(found[0] for found in known), max(found[1] for found in known)
    room = max(high - low, 1e-6) / 12
    axes.set_ylim(low - room, high + room)


def legend_below(figure: Figure, axes: Axes, extra: Sequence[Line2D] = (), *, columns: int = 2) -> Legend:
    """Legend of `axes` under the whole drawing, where it hides no curve; `extra` handles come last.

    In fewer columns where it would be wider than the figure.
    """
    handles = [*axes.get_legend_handles_labels()[0], *extra]
    # Long enough that dashes and dots are told apart.
    between = _BETWEEN if figure.get_figwidth() > _NARROW else _BETWEEN_NARROW
    look = {"loc": "lower center", "handlelength": _HANDLE, "columnspacing": between}
    legend = figure.legend(handles=handles, ncols=columns, **look)
    if columns > 1 and legend.get_window_extent().width > figure.bbox.width:
        legend.remove()
        return legend_below(figure, axes, extra, columns=columns - 1)
    return legend


def make_room(figure: Figure, legend: Legend) -> None:
    """Makes the figure higher by its legend."""
    figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / figure.dpi)


def faint_handle(text: str) -> Line2D:
    return Line2D([], [], color="#000000", alpha=_FAINT, lw=1.0, label=text)


def paper_handle() -> Line2D:
    return faint_handle(f"faint, in brackets: the paper ({PAPER_NAME})")


def diverged_handle() -> Line2D:
    return Line2D([], [], label="diverged", marker="X", ms=8, color="#000000", mec="white", ls="none")


def band_handle(text: str) -> Line2D:
    return Line2D([], [], color="#000000", alpha=_BAND, lw=6, label=text)
