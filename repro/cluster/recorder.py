"""What a segment leaves behind: metrics.jsonl and done.json, in the portable trainer's format, and who has diverged.

One process writes: the last rank, which is in the last pipeline stage and knows the losses. The files live in the
state folder while training goes on and are copied beside run.yaml when the segment is complete.

Not here: when something is recorded (repro.cluster.session), checkpoints' tensors.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from repro.cluster import state
from repro.cluster.state import Start
from repro.cluster.sums import collect_sums
from repro.data.manifest import manifest_sha256
from repro.portable.checkpoint import StateLock
from repro.portable.divergence import DivergenceWatch
from repro.portable.frozen import FrozenSegment
from repro.portable.metrics import MetricsWriter, write_whole
from repro.portable.progress import Progress

_DONE, _DIVERGED, _METRICS, _NONFINITE = "done.json", "diverged", "metrics.jsonl", "nonfinite.json"


class Recorder:
    """Writes one segment's record; made in one process only."""

    def __init__(
        self, segment: FrozenSegment, state_root: Path, start: Start, *, degrees: tuple[int, int] = (1, 1)
    ) -> None:
        """`degrees`: of tensor and pipeline parallelism.

        Raises ValueError when another process records the segment.
        """
        self.segment, self._degrees = segment, degrees
        self.folder = state_root / segment.run_hash
        self._lock = StateLock(self.folder)
        self._watch = DivergenceWatch(segment.content["divergence"], start.meta.get("divergence"))
        self._seconds = float(start.meta.get("seconds", 0.0)) if start.resumed else 0.0
        # A checkpoint written before waits were counted says nothing of them.
        self._data_seconds = float(start.meta.get("data_seconds", 0.0)) if start.resumed else 0.0
        self._last: dict[str, float | None] = dict(start.meta.get("last", {})) if start.resumed else {}
        keep = start.meta["metrics_bytes"] if start.resumed else 0
        self._metrics = MetricsWriter(self.folder / _METRICS, keep_bytes=keep)
        self._progress = Progress(segment.name, start.step, segment.end_step)
        self._validated = start.meta.get("validated_step") if start.resumed else None
        self._peak = 0
        self._is_finite = True

    def train(
        self, step: int, *, loss: float, grad_norm: float, learning_rate: float, nonfinite: int, seconds: float,
        data_seconds: float, peak_memory_bytes: int,
    ) -> str | None:  # fmt: skip
        """Records one optimizer step; says why the run has diverged, or None.

        `data_seconds`: of `seconds`, this process's wait for samples (repro.cluster.session.Loop).
        """
        self._seconds += seconds
        self._data_seconds += data_seconds
        self._peak = max(self._peak, peak_memory_bytes)
        self._is_finite = math.isfinite(loss) and math.isfinite(grad_norm) and not nonfinite
        self._last["train_loss"] = loss
        record = {
            "kind": "train",
            "step": step,
            "tokens": step * self.segment.step_tokens,
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "nonfinite": nonfinite,
            "seconds": round(seconds, 5),
            "data_seconds": round(data_seconds, 5),
            "tokens_per_second": round(self.segment.step_tokens / max(seconds, 1e-9), 1),
            "peak_memory_bytes": peak_memory_bytes,
        }
        self._metrics.write(record)
        self._progress.show(record, self._last.get("validation_loss"))
        return self._watch.reason(loss, grad_norm, nonfinite)

    def validation(self, step: int, sums: dict[str, tuple[float, float]], seconds: float) -> None:
        """Records one validation; sums: category -> (sum of losses, number of tokens)."""
        total, count = (sum(pair[i] for pair in sums.values()) for i in (0, 1))
        self._last["validation_loss"] = total / count
        self._validated = step
        self._metrics.write(
            {
                "kind": "validation",
                "step": step,
                "tokens": step * self.segment.step_tokens,
                "loss": total / count,
                "loss_by_category": {name: loss / tokens for name, (loss, tokens) in sums.items()},
                "seconds": round(seconds, 5),
            }
        )

    def trains_again(self, step: int) -> bool:
        """Whether the last step, which counts as divergence, is to be trained once more from the newest checkpoint.

        So it is where a value was not finite, for the first time since that checkpoint: a GPU that failed in silence
        does not do so again, a run that diverges does. A loss that rose over many steps is no such fault.
        """
        path, newest = self.folder / _NONFINITE, (state.complete_steps(self.folder) or [None])[-1]
        if self._is_finite or (path.exists() and json.loads(path.read_bytes())["checkpoint"] == newest):
            return False
        write_whole(path, json.dumps({"step": step, "checkpoint": newest}).encode())
        return True

    def diverged(self, step: int, reason: str) -> None:
        """Records the end of a run that diverged, and leaves the mark that its forks find."""
        event = {
            "kind": "event",
            "event": "diverged",
            "step": step,
            "tokens": step * self.segment.step_tokens,
        }
        self._metrics.write({**event, "reason": reason})
        (self.folder / _DIVERGED).write_text(reason, encoding="utf-8")

    def saved(self, step: int, *, processes: int) -> None:
        """Marks megatron-core's checkpoint of `step` as complete and removes those no longer needed.

        `processes` have written it and its checksums.
        """
        meta = {
            "run": self.segment.content["run"],
            "segment": self.segment.content["segment"],
            "run_hash": self.segment.run_hash,
            "step": step,
            "tokens": step * self.segment.step_tokens,
            "seconds": self._seconds,
            "data_seconds": self._data_seconds,
            "last": self._last,
            "validated_step": self._validated,
            "degrees": list(self._degrees),
            "files": state.sizes(self.folder, step),
            "sha256": collect_sums(state.marks_folder(self.folder, step), processes=processes),
            "divergence": self._watch.state(),
            "metrics_bytes": self._metrics.flush(),
        }
        state.write_meta(self.folder, step, meta)
        keep_last = self.segment.content["checkpoints"]["keep_last"]
        state.prune(self.folder, keep_last=keep_last, keep_steps=self.segment.kept_steps)

    def finish(
        self, status: str, step: int, *, num_parameters: int, precision: list[Any], made_with: dict[str, Any]
    ) -> None:
        """Writes done.json, which says that the segment needs no more training; rolling checkpoints go."""
        self._metrics.flush()
        self._metrics.close()
        state.prune(self.folder, keep_last=0, keep_steps=self.segment.kept_steps)
        content, schedule = self.segment.content, self.segment.schedule
        trained = step * self.segment.step_tokens - schedule["start_tokens"]
        done = {
            "run": content["run"],
            "segment": content["segment"],
            "run_hash": self.segment.run_hash,
            "status": status,
            "end_tokens": step * self.segment.step_tokens,
            "final": {key: self._last.get(key) for key in ("train_loss", "validation_loss")},
            "num_parameters": num_parameters,
            "precision": precision,
            "provenance": {
                **made_with,
                "run_hash": self.segment.run_hash,
                "seed": content["seed"],
                "seconds": round(self._seconds, 3),
                "data_seconds": round(self._data_seconds, 3),
                "tokens_per_second": round(trained / max(self._seconds, 1e-9), 1),
                "peak_memory_bytes": self._peak,
            },
        }
        write_whole(self.folder / _DONE, json.dumps(done, indent=1).encode())


def is_done(segment: FrozenSegment, state_root: Path) -> bool:
    """Whether the segment needs no more training."""
    return (state_root / segment.run_hash / _DONE).exists()


def parent_diverged(segment: FrozenSegment, state_root: Path) -> bool:
    """Whether the run that this segment continues diverged before the fork point."""
    parent = segment.content["init_from"]
    return parent is not None and (state_root / parent["run_hash"] / _DIVERGED).exists()


def publish(segment: FrozenSegment, state_root: Path) -> str:
    """Copies metrics.jsonl and done.json beside run.yaml; returns the status."""
    folder = state_root / segment.run_hash
    done = (folder / _DONE).read_bytes()
    write_whole(segment.path.parent / _METRICS, (folder / _METRICS).read_bytes())
    write_whole(segment.path.parent / _DONE, done)
    return json.loads(done)["status"]


def check_data(segment: FrozenSegment, state_root: Path, data_dir: Path, *, note: bool) -> None:
    """Raises ValueError when the data is not prepared, or the state was trained on other data.

    `note`: writes down which (one process).
    """
    path, now = state_root / segment.run_hash / "data_hash", manifest_sha256(data_dir)[:16]
    if path.exists() and (before := path.read_text(encoding="utf-8")) != now:
        raise ValueError(
            f"{path.parent}: trained on data {before}, but {data_dir} holds {now}; move the folder away to train anew"
        )
    if note:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, now.encode())
