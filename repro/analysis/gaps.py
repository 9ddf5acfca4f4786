"""The paper's relative difference between two runs, on paired tokens.

    gap = (baseline - run) / baseline   in per cent of the baseline's loss, negative = the run is worse

(Sections 3-5 and Appendix E plot this "relative difference".) Runs are compared where both logged a loss at the same
token count; nothing is interpolated. Does not: smooth or judge.
"""

from __future__ import annotations

import numpy as np
import pandas as pd


def relative_gap(baseline: pd.DataFrame, run: pd.DataFrame, *, names: tuple[str, str]) -> pd.DataFrame:
    """Gap of `run` to `baseline` at the tokens that both have.

    Args:
        baseline, run: columns tokens and loss, as Run.curve returns them.
        names: (baseline, run) for the error message.

    Returns:
        Columns tokens (int), fraction (of the run's horizon) and gap (per cent). A non-finite loss on either side
        gives NaN, never a number.

    Raises:
        ValueError: the two share no token count (another batch size or logging interval).
    """
    both = run[["tokens", "fraction", "loss"]].merge(
        baseline[["tokens", "loss"]], on="tokens", suffixes=("", "_base")
    )
    if both.empty:
        raise ValueError(
            f"{names[1]} and its baseline {names[0]} share no token count: "
            f"{_span(run)} against {_span(baseline)}; they must log at the same tokens"
        )
    base = both["loss_base"].to_numpy(dtype=float)
    loss = both["loss"].to_numpy(dtype=float)
    finite = np.isfinite(base) & np.isfinite(loss) & (base != 0)
    gap = np.full(len(both), np.nan)
    gap[finite] = 100.0 * (base[finite] - loss[finite]) / base[finite]
    return pd.DataFrame({"tokens": both["tokens"], "fraction": both["fraction"], "gap": gap})


def _span(curve: pd.DataFrame) -> str:
    if curve.empty:
        return "no points"
    return f"{len(curve)} points from {curve['tokens'].min()} to {curve['tokens'].max()} tokens"
