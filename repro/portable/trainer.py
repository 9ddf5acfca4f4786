"""Trains one frozen segment: the loop, and what is saved and restored around it.

Paper sections 3, 4 and Appendix A (settings come from the frozen run). Shapes: B sequences of a micro batch, S
tokens of a sequence, V vocabulary.

A segment starts from fresh weights or from the parent's checkpoint at the fork token, under its own recipe; the
order of samples, the learning rate and every random stream are functions of the position alone, so a resumed
segment repeats the numbers of an undisturbed one to the bit (same device, same number of threads). A run that goes
diverges (divergence.py) ends as a result with status "diverged". Not here: several processes.
"""

from __future__ import annotations

import json
import logging
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from repro.data.manifest import MANIFEST, sha256_of
from repro.data.training_data import TrainingData, ValidationData
from repro.models import build_model
from repro.models.loss import cross_entropy
from repro.portable import checkpoint, provenance
from repro.portable.divergence import DivergenceWatch
from repro.portable.frozen import FrozenSegment
from repro.portable.metrics import MetricsWriter, write_whole
from repro.portable.optimizer import Optimizer
from repro.portable.progress import Progress
from repro.portable.schedule import learning_rate
from repro.recipes.apply import apply_recipe
from repro.recipes.context import RunContext

log = logging.getLogger("repro.portable")

# The validation pass draws its own random streams: a micro batch number that training never uses.
_VALIDATION_MICROBATCH = -1
_DONE = "done.json"


class Stopped(Exception):  # noqa: N818 - not an error: the segment was asked to stop and saved itself
    """Raised after a stop was asked for and the checkpoint is on disk."""


@dataclass
class Position:
    """Where training stands. `step` and `tokens` count from the start of the run's lineage."""

    step: int
    tokens: int
    seconds: float = 0.0  # training time spent in this segment so far, over all restarts
    last: dict[str, float | None] = field(default_factory=dict)  # newest train_loss and validation_loss


class Trainer:
    """Owns model, optimizer, data and state folder of one segment."""

    def __init__(
        self, segment: FrozenSegment, *, data_dir: Path, state_root: Path, device: str = "cpu"
    ) -> None:
        content = segment.content
        self.segment = segment
        self.device = torch.device(device)
        self.state_root = state_root
        self.state_dir = state_root / segment.run_hash
        self.lock = checkpoint.StateLock(self.state_dir)
        checkpoint.set_aside_other_data(self.state_dir, sha256_of(data_dir / MANIFEST)[:16])
        self.context = RunContext(content["seed"])
        self.model = build_model(segment.model, seed=content["seed"], device=device)
        self.precision = apply_recipe(self.model, segment.recipe, context=self.context)
        self.optimizer = Optimizer(self.model, content["optimizer"])
        self.watch = DivergenceWatch(content["divergence"])
        self.training_data = TrainingData(data_dir, content["data"], segment.schedule)
        self.validation_data = ValidationData(
            data_dir, content["data"], segment.schedule, content["validation"]
        )
        self.metrics_path = self.state_dir / "metrics.jsonl"
        kept_tokens = {*content["checkpoints"]["keep_tokens"], segment.schedule["end_tokens"]}
        self.kept_steps = {tokens // segment.step_tokens for tokens in kept_tokens}

    # state

    def restore(self) -> Position:
        """Goes to the newest checkpoint of this segment, else to the parent's fork point, else to step 0."""
        found, problems = checkpoint.load_newest(self.state_dir, run_hash=self.segment.run_hash)
        for problem in problems:
            log.warning("%s: damaged checkpoint left out: %s", self.segment.name, problem)
        if found:
            tensors, meta = found
            self._load(tensors, meta)
            log.info("%s: resumed at step %d", self.segment.name, meta["step"])
            self.metrics = MetricsWriter(self.metrics_path, keep_bytes=meta["metrics_bytes"])
            return Position(meta["step"], meta["tokens"], meta["seconds"], meta["last"])
        self.metrics = MetricsWriter(self.metrics_path, keep_bytes=0)
        parent = self.segment.content["init_from"]
        if parent is None or self._parent_diverged():
            return Position(self.segment.start_step, self.segment.schedule["start_tokens"])
        tensors, meta = checkpoint.load_at(self.state_root / parent["run_hash"], parent["tokens"])
        self._load(tensors, meta)
        log.info("%s: forked from %s at step %d", self.segment.name, parent["run"], meta["step"])
        return Position(meta["step"], meta["tokens"])

    def _load(self, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
        self.watch = DivergenceWatch(self.segment.content["divergence"], meta["divergence"])
        state = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        self.model.load_state_dict(state, strict=True)
        self.optimizer.load_state_tensors(tensors)

    def save(self, position: Position) -> None:
        """Writes a checkpoint of `position` and removes the ones no longer needed."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        meta = {
            "run": self.segment.content["run"],
            "segment": self.segment.content["segment"],
            "run_hash": self.segment.run_hash,
            "step": position.step,
            "tokens": position.tokens,
            "seconds": position.seconds,
            "last": position.last,
            "divergence": self.watch.state(),
            "metrics_bytes": self.metrics.flush(),
        }
        checkpoint.save(self.state_dir, {**tensors, **self.optimizer.state_tensors()}, meta)
        checkpoint.prune(
            self.state_dir,
            keep_last=self.segment.content["checkpoints"]["keep_last"],
            keep_steps=self.kept_steps,
        )

    # the loop

    def run(self, *, should_stop: Callable[[], bool] = lambda: False) -> str:
        """Trains to the segment's end. Returns "completed" or "diverged"; raises Stopped after saving."""
        segment, checkpoints = self.segment, self.segment.content["checkpoints"]
        if (self.state_dir / _DONE).exists():
            log.info("%s: already trained", segment.name)
            return self._publish()
        position = self.restore()
        progress = Progress(segment.name, position.step, segment.end_step)
        status = "completed"
        if self._parent_diverged():
            status = self._diverge(position, "the parent run diverged before the fork point")
        while status == "completed" and position.step < segment.end_step:
            record = self._step(position)
            progress.show(record, position.last.get("validation_loss"))
            if reason := self.watch.reason(record["loss"], record["grad_norm"], record["nonfinite"]):
                status = self._diverge(position, reason)
                break
            every = segment.content["validation"]["every_tokens"]
            if _crosses(position.tokens, every, segment.step_tokens) or position.step == segment.end_step:
                self._validate(position)
            save_due = _crosses(position.tokens, checkpoints["every_tokens"], segment.step_tokens)
            stop = should_stop() and position.step < segment.end_step
            if save_due or stop or position.step in self.kept_steps:
                self.save(position)
            if stop:
                raise Stopped(f"{segment.name}: stopped at step {position.step}, saved; run again to go on")
        self._finish(position, status)
        return self._publish()

    def _step(self, position: Position) -> dict[str, Any]:
        """One optimizer step; appends its record to the metrics and moves `position`."""
        schedule, started = self.segment.schedule, time.perf_counter()
        self.context.step = position.step
        self.model.train()
        batch_sequences, micro = schedule["batch_sequences"], schedule["micro_batch_sequences"]
        first = position.step * batch_sequences
        loss_sum = torch.zeros((), device=self.device)
        for number, offset in enumerate(range(0, batch_sequences, micro)):
            self.context.microbatch = number
            tokens_BS = torch.from_numpy(self.training_data.batch(first + offset, micro)).to(self.device)
            loss = cross_entropy(self.model, tokens_BS[:, :-1], tokens_BS[:, 1:])
            (loss * (micro / batch_sequences)).backward()
            loss_sum += loss.detach() * (micro / batch_sequences)
        rate = learning_rate(position.tokens, schedule)
        grad_norm = self.optimizer.step(rate)
        position.step += 1
        position.tokens += self.segment.step_tokens
        seconds = time.perf_counter() - started
        position.seconds += seconds
        position.last = {**position.last, "train_loss": loss_sum.item()}
        record = {
            "kind": "train",
            "step": position.step,
            "tokens": position.tokens,
            "loss": loss_sum.item(),
            "grad_norm": grad_norm.item(),
            "learning_rate": rate,
            "nonfinite": self.context.nonfinite,
            "seconds": round(seconds, 5),
            "tokens_per_second": round(self.segment.step_tokens / seconds, 1),
            "peak_memory_bytes": self._peak_memory_bytes(),
        }
        self.metrics.write(record)
        return record

    @torch.no_grad()
    def _validate(self, position: Position) -> None:
        """Loss on the fixed validation set, per category and in all, with the precision that trains."""
        started = time.perf_counter()
        self.model.eval()
        self.context.step, self.context.microbatch = position.step, _VALIDATION_MICROBATCH
        by_category, total, count = {}, 0.0, 0
        for category, tokens in self.validation_data.batches(self.segment.schedule["micro_batch_sequences"]):
            tokens_BS = torch.from_numpy(tokens).to(self.device)
            loss = cross_entropy(self.model, tokens_BS[:, :-1], tokens_BS[:, 1:]).item()
            sums = by_category.setdefault(category, [0.0, 0])
            sums[0] += loss * len(tokens)
            sums[1] += len(tokens)
            total, count = total + loss * len(tokens), count + len(tokens)
        position.last = {**position.last, "validation_loss": total / count}
        self.metrics.write(
            {
                "kind": "validation",
                "step": position.step,
                "tokens": position.tokens,
                "loss": total / count,
                "loss_by_category": {name: value / number for name, (value, number) in by_category.items()},
                "seconds": round(time.perf_counter() - started, 5),
            }
        )

    # endings

    def _parent_diverged(self) -> bool:
        parent = self.segment.content["init_from"]
        return parent is not None and (self.state_root / parent["run_hash"] / "diverged").exists()

    def _diverge(self, position: Position, reason: str) -> str:
        log.warning("%s: diverged at step %d: %s", self.segment.name, position.step, reason)
        event = {"kind": "event", "event": "diverged", "step": position.step, "tokens": position.tokens}
        self.metrics.write({**event, "reason": reason})
        (self.state_dir / "diverged").write_text(reason, encoding="utf-8")
        return "diverged"

    def _finish(self, position: Position, status: str) -> None:
        """Writes done.json, which says that the segment needs no more training; the rolling checkpoints go."""
        self.metrics.flush()
        self.metrics.close()
        checkpoint.prune(self.state_dir, keep_last=0, keep_steps=self.kept_steps)
        content = self.segment.content
        trained_tokens = position.tokens - self.segment.schedule["start_tokens"]
        done = {
            "run": content["run"],
            "segment": content["segment"],
            "run_hash": self.segment.run_hash,
            "status": status,
            "end_tokens": position.tokens,
            "final": {key: position.last.get(key) for key in ("train_loss", "validation_loss")},
            "num_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "precision": self.precision,
            "provenance": {
                **provenance.describe(self.device),
                "run_hash": self.segment.run_hash,
                "seed": content["seed"],
                "seconds": round(position.seconds, 3),
                "tokens_per_second": round(trained_tokens / max(position.seconds, 1e-9), 1),
                "peak_memory_bytes": self._peak_memory_bytes(),
            },
        }
        write_whole(self.state_dir / _DONE, json.dumps(done, indent=1).encode())

    def _publish(self) -> str:
        """Copies metrics.jsonl and done.json beside run.yaml; returns the status."""
        done = (self.state_dir / _DONE).read_bytes()
        write_whole(self.segment.path.parent / "metrics.jsonl", self.metrics_path.read_bytes())
        write_whole(self.segment.path.parent / _DONE, done)
        return json.loads(done)["status"]

    def _peak_memory_bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _crosses(tokens: int, every: int, step_tokens: int) -> bool:
    """Whether the step that ended at `tokens` passed a multiple of `every`."""
    return tokens // every != (tokens - step_tokens) // every
