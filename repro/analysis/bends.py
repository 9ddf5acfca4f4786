"""Where a run's frozen schedule bends: the start of the decay and the changes of the blend, as dotted lines.

A kink of a loss at one of them is the schedule's, not the method's. Does not: read a curve, or judge.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from repro.analysis.results import Results

#: Quantity of the table -> what stands beside the line.
NAMES = {"decay_start": "decay starts", "blend_change": "blend changes"}


def bend_rows(results: Results, run: str, *, text: str) -> pd.DataFrame:
    """Panel "schedule" of a table of curves: the fractions of the horizon at which the frozen schedule bends."""
    frozen, meta = results.frozen(run), results.meta(run)
    horizon = frozen["schedule"]["horizon_tokens"]
    bends = [("decay_start", frozen["schedule"]["decay_start_tokens"])]
    bends += [("blend_change", phase["until_tokens"]) for phase in frozen["data"]["phases"][:-1]]
    rows = [
        {"panel": "schedule", "run": run, "role": "run", "quantity": quantity, "text": text, "tokens": tokens,
         "fraction": tokens / horizon, "replica_of": run, "replica": 1, "paired": True, **meta}
        for quantity, tokens in bends
    ]  # fmt: skip
    return pd.DataFrame(rows)


def bends_of(table: pd.DataFrame, quantity: str) -> list[float]:
    """Fractions of the horizon, rising; none in a table without the panel."""
    return sorted(table.loc[(table["panel"] == "schedule") & (table["quantity"] == quantity), "fraction"])


def draw_bends(
    axes: Axes, table: pd.DataFrame, *, named: bool = False, top: float = 1.0, upright: bool = True
) -> None:
    """Dotted lines at the bends inside the x-range, up to `top` (a share of the axes); names stand left of them."""
    low, high = axes.get_xlim()
    for quantity, words in NAMES.items():
        for fraction in bends_of(table, quantity):
            if not low <= 100 * fraction <= high:
                continue
            axes.axvline(100 * fraction, ymax=top, color="#888888", ls=":", lw=0.8, zorder=0)
            if named:
                place = (100 * fraction - (high - low) / 100, top - 0.02)
                axes.annotate(
                    words, place, xycoords=("data", "axes fraction"), fontsize=5.5, rotation=90 if upright else 0,
                    va="top", ha="right", color="#666666",
                )  # fmt: skip
