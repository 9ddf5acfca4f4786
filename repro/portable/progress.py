"""Progress lines: which run, step, losses, tokens per second, what remains. One line every few seconds."""

from __future__ import annotations

import logging
import time
from typing import Any

log = logging.getLogger("repro.portable")


_INTERVAL_SECONDS = 3.0


class Progress:
    """Logs the first step, the last, and one line every few seconds between."""

    def __init__(self, name: str, start_step: int, end_step: int) -> None:
        self._name, self._start, self._end = name, start_step, end_step
        self._began = time.monotonic()
        self._shown = 0.0

    def show(self, record: dict[str, Any], validation_loss: float | None) -> None:
        """`record` is a "train" line of metrics.jsonl."""
        now, step = time.monotonic(), record["step"]
        if now - self._shown < _INTERVAL_SECONDS and step not in (self._start + 1, self._end):
            return
        self._shown = now
        per_step = (now - self._began) / (step - self._start)
        validation = f" validation {validation_loss:.4f}" if validation_loss is not None else ""
        log.info(
            "%-28s step %d/%d (%3.0f %%) loss %.4f%s  %.0f tokens/s  %.0f s left",
            self._name,
            step,
            self._end,
            100 * (step - self._start) / max(1, self._end - self._start),
            record["loss"],
            validation,
            record["tokens_per_second"],
            per_step * (self._end - step),
        )
