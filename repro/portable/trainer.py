"""Trains one frozen segment: the loop, and what is saved and restored around it.

Paper sections 3, 4 and Appendix A (settings come from the frozen run).

A segment starts from fresh weights or from the parent's checkpoint at the fork token, under its own recipe; the
order of samples, the learning rate and every random stream are functions of the position alone, so a resumed
segment repeats the numbers of an undisturbed one to the bit (same kind of device, same number of threads), on any
number of processes that divides the micro batches of a step. A run that diverges (divergence.py) ends as a result
with status "diverged". Not here: the computation of a step (step.py), files (segment_files.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from repro.data.training_data import TrainingData, ValidationData
from repro.models import build_model
from repro.models.fragments import is_fusing
from repro.portable import gpu, provenance
from repro.portable.batches import Batches
from repro.portable.checkpoint import model_weights
from repro.portable.divergence import DivergenceWatch
from repro.portable.frozen import FrozenSegment
from repro.portable.optimizer import Optimizer
from repro.portable.parallel import Ranks
from repro.portable.position import Position, crosses
from repro.portable.progress import Progress
from repro.portable.schedule import learning_rate
from repro.portable.segment_files import SegmentFiles
from repro.portable.step import Stepper
from repro.recipes.apply import apply_recipe
from repro.recipes.context import RunContext

log = logging.getLogger("repro.portable")


class Stopped(Exception):  # noqa: N818 - not an error: the segment was asked to stop and saved itself
    """Raised after a stop was asked for and the checkpoint is on disk."""


class Trainer:
    """Owns model, optimizer and data of one segment, and its files in process 0."""

    def __init__(
        self,
        segment: FrozenSegment,
        *,
        data_dir: Path,
        state_root: Path,
        device: str = "cpu",
        ranks: Ranks | None = None,
        fuse: bool = False,
        emulate_fp8: bool = False,
    ) -> None:
        """fuse: compile the stretches between the products; on a GPU only, where `prepare_process` was called.

        emulate_fp8: exact FP8 products also where the card has its own; the record's `product` says which ran.
        """
        content = segment.content
        self.segment = segment
        self.device = torch.device(device)
        self.ranks = ranks or Ranks()
        self.files = None
        if self.ranks.is_first:
            self.files = SegmentFiles(segment, data_dir=data_dir, state_root=state_root)
        self.context = RunContext(content["seed"], emulate_fp8=emulate_fp8)
        self.model = build_model(segment.model, seed=content["seed"], device=device)
        if self.device.type == "cuda":
            gpu.prepare_model(self.model, fuse=fuse)
        self.precision = apply_recipe(self.model, segment.recipe, context=self.context)
        self.optimizer = Optimizer(self.model, content["optimizer"])
        self.watch = DivergenceWatch(content["divergence"])
        schedule = segment.schedule
        self.stepper = Stepper(self.model, self.optimizer, self.context, schedule, self.ranks)
        self.batches = Batches(
            TrainingData(data_dir, content["data"], schedule),
            self.device,
            stride=schedule["micro_batch_sequences"] * self.ranks.size,
            end=segment.end_step * schedule["batch_sequences"],
        )
        self.validation_data = ValidationData(data_dir, content["data"], schedule, content["validation"])

    def close(self) -> None:
        """Frees the segment's lock; the end of the process does the same."""
        if self.files:
            self.files.lock.release()

    # state

    def restore(self) -> Position:
        """Goes to the newest checkpoint of this segment, else to the parent's fork point, else to step 0.

        Process 0 reads; the others take weights, moments and position from it and need no common file system.
        """
        meta = self.ranks.from_first(self._load)
        self.ranks.spread([*self.model.state_dict().values(), *self.optimizer.state_tensors().values()])
        if meta is None:
            return Position(self.segment.start_step, self.segment.schedule["start_tokens"])
        self.watch = DivergenceWatch(self.segment.content["divergence"], meta["divergence"])
        if meta["resumed"]:
            return Position.saved(meta)
        return Position(meta["step"], meta["tokens"])

    def _load(self) -> dict[str, Any] | None:
        found = self.files.start() if self.files else None
        if found is None:
            return None
        tensors, meta = found
        self.model.load_state_dict(model_weights(tensors), strict=True)
        self.optimizer.load_state_tensors(tensors)
        return meta

    def save(self, position: Position) -> None:
        """Process 0 writes a checkpoint of `position`."""
        if not self.files:
            return
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        meta = {**asdict(position), "divergence": self.watch.state()}
        self.files.save({**tensors, **self.optimizer.state_tensors()}, meta)

    # the loop

    def run(self, *, should_stop: Callable[[], bool] = lambda: False) -> str:
        """Trains to the segment's end. Returns "completed" or "diverged"; raises Stopped after saving.

        `should_stop` is asked once a step in every process; all stop at the same step when it is true in any.
        """
        segment, files = self.segment, self.files
        if self.ranks.from_first(lambda: files is not None and files.is_done()):
            log.info("%s: already trained", segment.name)
            return self._publish()
        position = self.restore()
        progress = Progress(segment.name, position.step, segment.end_step)
        status = "completed"
        if self.ranks.from_first(lambda: files is not None and files.parent_diverged()):
            status = self._diverge(position, "the parent run diverged before the fork point")
        while status == "completed" and position.step < segment.end_step:
            record = self._step(position)
            progress.show(record, position.last.get("validation_loss"))
            if reason := self.watch.reason(record["loss"], record["grad_norm"], record["nonfinite"]):
                status = self._diverge(position, reason)
                break
            every = segment.content["validation"]["every_tokens"]
            if crosses(position.tokens, every, segment.step_tokens) or position.step == segment.end_step:
                self._validate(position)
            every = segment.content["checkpoints"]["every_tokens"]
            save_due = crosses(position.tokens, every, segment.step_tokens)
            stop = self.ranks.any(should_stop()) and position.step < segment.end_step
            if save_due or stop or position.step in segment.kept_steps:
                self.save(position)
            if stop:
                self.ranks.wait()  # nobody reports a clean stop before the checkpoint is on disk
                raise Stopped(f"{segment.name}: stopped at step {position.step}, saved; run again to go on")
        self._finish(position, status)
        return self._publish()

    def _step(self, position: Position) -> dict[str, Any]:
        """One optimizer step; appends its record to the metrics and moves `position`."""
        started, waited = time.perf_counter(), self.batches.waited_seconds
        rate = learning_rate(position.tokens, self.segment.schedule)
        result = self.stepper.train(position.step, self.batches, rate)
        position.step += 1
        position.tokens += self.segment.step_tokens
        seconds = time.perf_counter() - started
        position.seconds += seconds
        data_seconds = self.batches.waited_seconds - waited
        position.data_seconds += data_seconds
        position.last = {**position.last, "train_loss": result.loss}
        record = {
            "kind": "train",
            "step": position.step,
            "tokens": position.tokens,
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "learning_rate": rate,
            "nonfinite": result.nonfinite,
            "seconds": round(seconds, 5),
            "data_seconds": round(data_seconds, 5),
            "tokens_per_second": round(self.segment.step_tokens / seconds, 1),
            "peak_memory_bytes": provenance.peak_memory_bytes(self.device),
        }
        self._write(record)
        return record

    def _validate(self, position: Position) -> None:
        started = time.perf_counter()
        loss, by_category = self.stepper.validate(position.step, self.validation_data)
        position.last = {**position.last, "validation_loss": loss}
        self._write(
            {
                "kind": "validation",
                "step": position.step,
                "tokens": position.tokens,
                "loss": loss,
                "loss_by_category": by_category,
                "seconds": round(time.perf_counter() - started, 5),
            }
        )

    def _write(self, record: dict[str, Any]) -> None:
        if self.files:
            self.files.write(record)

    # endings

    def _diverge(self, position: Position, reason: str) -> str:
        log.warning("%s: diverged at step %d: %s", self.segment.name, position.step, reason)
        event = {"kind": "event", "event": "diverged", "step": position.step, "tokens": position.tokens}
        self._write({**event, "reason": reason})
        if self.files:
            self.files.note_divergence(reason)
        return "diverged"

    def _finish(self, position: Position, status: str) -> None:
        if not self.files:
            return
        trained_tokens = position.tokens - self.segment.schedule["start_tokens"]
        done = {
            "status": status,
            "end_tokens": position.tokens,
            "final": {key: position.last.get(key) for key in ("train_loss", "validation_loss")},
            "num_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "precision": self.precision,
        }
        made_with = {
            **provenance.describe(self.device),
            "processes": self.ranks.size,
            "compiled": is_fusing(),
            "graphs": self.stepper.uses_graphs,
            "seconds": round(position.seconds, 3),
            "data_seconds": round(position.data_seconds, 3),
            "tokens_per_second": round(trained_tokens / max(position.seconds, 1e-9), 1),
            "peak_memory_bytes": provenance.peak_memory_bytes(self.device),
        }
        self.files.finish(done, made_with)

    def _publish(self) -> str:
        """Process 0 puts the results beside run.yaml; every process returns their status."""
        return self.ranks.from_first(lambda: self.files.publish() if self.files else "")
