"""When a run counts as diverged: a result to record, not a failed job (Figures 9 and 10 of the paper).

The paper's diverged runs do not end in NaN: they climb from 1.6 to about 8 nats and stay. So a run is diverged when
a loss or gradient norm is not finite, or when the mean training loss of the last `window_steps` steps lies more than
`rise_nats` above the lowest such mean before. A spike that comes back within the window is not. Not here: what
happens then (trainer.py).
"""

from __future__ import annotations

import math
from typing import Any


class DivergenceWatch:
    """Sees every step's losses; its state travels in the checkpoint, from a parent to its forks too."""

    def __init__(self, section: dict[str, Any], state: dict[str, Any] | None = None) -> None:
        """`section`: window_steps (steps), rise_nats (nats). `state`: what `state()` gave, None at a run's start."""
        self._window, self._rise = section["window_steps"], section["rise_nats"]
        self._recent: list[float] = list(state["recent"])[-self._window :] if state else []
        self._lowest: float | None = state["lowest"] if state else None

    def state(self) -> dict[str, Any]:
        """JSON: the losses of the window and the lowest mean so far (null before the first full window)."""
        return {"recent": self._recent, "lowest": self._lowest}

    def reason(self, loss: float, grad_norm: float, nonfinite: int) -> str | None:
        """Takes one step in; says why the run is diverged, or None.

        loss in nats; grad_norm before clipping; nonfinite: quantised operands of the step that held Inf or NaN.
        """
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return f"non-finite loss or gradient norm (loss {loss}, gradient norm {grad_norm})"
        if nonfinite:
            return f"{nonfinite} quantised operands held a non-finite value"
        self._recent = [*self._recent, loss][-self._window :]
        if len(self._recent) < self._window:
            return None
        mean = sum(self._recent) / self._window
        if self._lowest is not None and mean > self._lowest + self._rise:
            return (
                f"mean loss of the last {self._window} steps {mean:.3f}, more than {self._rise} above "
                f"the lowest before ({self._lowest:.3f})"
            )
        self._lowest = mean if self._lowest is None else min(self._lowest, mean)
        return None
