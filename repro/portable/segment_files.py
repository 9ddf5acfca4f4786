"""The files of one segment in training: lock, metrics, checkpoints, and the marks of its end.

    state/<run_hash>/{lock,data_hash,metrics.jsonl,step_*/,diverged,done.json}   while and after training
    runs/<run>/<segment>/{metrics.jsonl,done.json}                              copied there when complete

With several processes only process 0 has this object. Not here: what is trained, or the layout of one checkpoint.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from repro.data.manifest import manifest_sha256
from repro.portable import checkpoint
from repro.portable.frozen import FrozenSegment
from repro.portable.metrics import MetricsWriter, write_whole

log = logging.getLogger("repro.portable")

_DONE = "done.json"
_DIVERGED = "diverged"


class SegmentFiles:
    """Holds the segment's lock for the life of the process."""

    def __init__(self, segment: FrozenSegment, *, data_dir: Path, state_root: Path) -> None:
        """Raises ValueError when another process trains the segment, or the data folder has no manifest."""
        self._segment = segment
        self._state_root = state_root
        self._state_dir = state_root / segment.run_hash
        self._metrics_path = self._state_dir / "metrics.jsonl"
        self._metrics: MetricsWriter | None = None
        self._kept_steps = segment.kept_steps
        self.lock = checkpoint.StateLock(self._state_dir)
        self._data_sha256 = manifest_sha256(data_dir)
        checkpoint.set_aside_other_data(self._state_dir, self._data_sha256[:16])

    # where training starts

    def is_done(self) -> bool:
        return (self._state_dir / _DONE).exists()

    def parent_diverged(self) -> bool:
        parent = self._segment.content["init_from"]
        return parent is not None and (self._state_root / parent["run_hash"] / _DIVERGED).exists()

    def start(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and meta of the newest checkpoint of this segment, else of the parent's at the fork token.

        None for fresh weights. Opens the metrics, cut off at what is returned; meta has "resumed": whether the
        checkpoint is this segment's own. Raises CheckpointError when the parent's is missing or damaged.
        """
        found, problems = checkpoint.load_newest(self._state_dir, run_hash=self._segment.run_hash)
        for problem in problems:
            log.warning("%s: damaged checkpoint left out: %s", self._segment.name, problem)
        if found:
            tensors, meta = found
            log.info("%s: resumed at step %d", self._segment.name, meta["step"])
            self._metrics = MetricsWriter(self._metrics_path, keep_bytes=meta["metrics_bytes"])
            return tensors, {**meta, "resumed": True}
        self._metrics = MetricsWriter(self._metrics_path, keep_bytes=0)
        parent = self._segment.content["init_from"]
        if parent is None or self.parent_diverged():
            return None
        tensors, meta = checkpoint.load_at(self._state_root / parent["run_hash"], parent["tokens"])
        log.info("%s: forked from %s at step %d", self._segment.name, parent["run"], meta["step"])
        return tensors, {**meta, "resumed": False}

    # while training

    def write(self, record: dict[str, Any]) -> None:
        """Appends one line to the metrics."""
        self._open_metrics().write(record)

    def save(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Writes a checkpoint and removes the ones no longer needed. Raises OSError; earlier ones stay."""
        own = {
            "run": self._segment.content["run"],
            "segment": self._segment.content["segment"],
            "run_hash": self._segment.run_hash,
            "metrics_bytes": self._open_metrics().flush(),
        }
        checkpoint.save(self._state_dir, tensors, {**own, **meta})
        keep_last = self._segment.content["checkpoints"]["keep_last"]
        checkpoint.prune(self._state_dir, keep_last=keep_last, keep_steps=self._kept_steps)

    def note_divergence(self, reason: str) -> None:
        """Leaves a mark that the forks of this run find."""
        (self._state_dir / _DIVERGED).write_text(reason, encoding="utf-8")

    # its end

    def finish(self, done: dict[str, Any], made_with: dict[str, Any]) -> None:
        """Writes done.json, which says that the segment needs no more training; the rolling checkpoints go.

        made_with: the provenance; what identifies the segment is added to both, and to it what identifies the data.
        """
        content = self._segment.content
        own = {"run": content["run"], "segment": content["segment"], "run_hash": self._segment.run_hash}
        made_with = {**made_with, "run_hash": self._segment.run_hash, "seed": content["seed"]}
        made_with["data_sha256"] = self._data_sha256
        metrics = self._open_metrics()
        metrics.flush()
        metrics.close()
        checkpoint.prune(self._state_dir, keep_last=0, keep_steps=self._kept_steps)
        whole = {**own, **done, "provenance": made_with}
        write_whole(self._state_dir / _DONE, json.dumps(whole, indent=1).encode())

    def publish(self) -> str:
        """Copies metrics.jsonl and done.json beside run.yaml; returns the status.

        Raises ValueError, before anything is copied, when one of them is missing, damaged or ends elsewhere.
        """
        try:
            done, metrics = (self._state_dir / _DONE).read_bytes(), self._metrics_path.read_bytes()
            status, end_tokens = (json.loads(done)[key] for key in ("status", "end_tokens"))
            ended = json.loads(metrics.splitlines()[-1])["tokens"]
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(self._damaged(f"missing or damaged ({error})")) from None
        if ended != end_tokens:
            raise ValueError(
                self._damaged(f"{_DONE} says {end_tokens} tokens, metrics.jsonl ends at {ended}")
            )
        write_whole(self._segment.path.parent / "metrics.jsonl", metrics)
        write_whole(self._segment.path.parent / _DONE, done)
        return status

    def _damaged(self, what: str) -> str:
        return f"{self._state_dir}: {_DONE} or metrics.jsonl: {what}; remove the folder to train the segment again"

    def _open_metrics(self) -> MetricsWriter:
        assert self._metrics is not None, "start() comes first"
        return self._metrics
