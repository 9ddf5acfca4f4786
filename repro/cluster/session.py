"""What happens around megatron-core's training loop: proof of precision, records, validation, checkpoints, endings.

megatron-core has one entry point, `pretrain`, whose loop calls functions of its own module by name. `Session.install`
puts itself around six of them; it refuses a version whose functions lack a parameter that is read here.

    train                         before step 1: the precision walk
    train_step                    time, wait and learning rate of the step; after step 1: the quantisers that ran
    training_log                  one line of metrics.jsonl; divergence, agreed on by all processes
    evaluate_and_print_results    replaced: repro's fixed validation set, by category
    save_checkpoint_and_time      after it: meta.json, pruning
    checkpoint_and_decide_exit    forks and evaluations are saved at their step; a diverged run leaves the loop

Read against megatron-core 0.19.2. Not here: megatron itself (repro.cluster.loop). Needs no megatron.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from repro.cluster import state
from repro.cluster.recorder import Recorder
from repro.cluster.state import Start
from repro.cluster.sums import write_sums
from repro.portable.frozen import FrozenSegment

log = logging.getLogger("repro.cluster")

#: Function of megatron.training.training -> the parameters that are read here.
_READ = {
    "train": ("model",),
    "train_step": ("model", "optimizer"),
    "training_log": ("loss_dict", "iteration", "grad_norm"),
    "evaluate_and_print_results": ("model", "iteration", "config"),
    "save_checkpoint_and_time": ("iteration",),
    "checkpoint_and_decide_exit": (
        "model",
        "optimizer",
        "opt_param_scheduler",
        "iteration",
        "num_floating_point_operations_so_far",
        "checkpointing_context",
        "train_data_iterator",
    ),
}
_LOSS = "lm loss"


class Loop(Protocol):
    """What a session asks of the process group and the model; repro.cluster.loop has the real one."""

    waited_seconds: float
    """For training samples, in all steps so far, of this process's own loader: no more than this did its GPU stand
    still for want of them. The process that writes is in the last stage of a pipeline and reads labels. What another
    one waits for (the first stage for tokens, a replica for its samples) only makes the step of this one longer."""

    def sum(self, number: int) -> int:
        """Over all processes."""

    def tell(self, flag: bool) -> bool:
        """The writing process's flag, in every process."""

    def precision_before(self, model: Any) -> list[Any]:
        """The whole model's record, read inside the contexts that will be entered; verified."""

    def precision_after(self, model: Any) -> list[Any]:
        """The whole model's record of what ran; verified."""

    def nonfinite(self) -> int:
        """Quantised operands of this step in this process that held Inf or NaN."""

    def validate(self, model: Any, config: Any, step: int) -> dict[str, tuple[float, float]]:
        """Category -> (sum of losses, tokens), complete in the writing process."""

    def peak_memory_bytes(self) -> int:
        """Of this process's GPU."""


class Session:
    """One process's view of one segment in training. `recorder` is None in processes that do not write."""

    def __init__(
        self,
        segment: FrozenSegment,
        loop: Loop,
        recorder: Recorder | None,
        start: Start | None = None,
        *,
        rank: int = 0,
    ) -> None:
        self.segment, self.loop, self.recorder = segment, loop, recorder
        self.precision: list[Any] = []
        self.model: list[Any] = []  # megatron-core's chunks of this process
        self.step = start.step if start else segment.start_step
        self.reason: str | None = None  # why the run diverged, in the writing process
        self.has_diverged = False
        self._state_dir, self._rank = start.folders.save if start else None, rank
        self._first = True
        self._validated_step: int | None = (
            start.meta.get("validated_step") if start and start.resumed else None
        )
        self._saved_step: int | None = None
        self._seconds = self._data_seconds = 0.0
        self._rate = math.nan

    @property
    def is_complete(self) -> bool:
        """Whether the segment's last step and its validation are recorded: a stop may come between the two."""
        return self.step == self._validated_step == self.segment.end_step

    def install(self, training: ModuleType) -> None:
        """Puts the session around the functions of megatron.training.training.

        Raises ValueError when the module is of a version whose functions are others.
        """
        for name, parameters in _READ.items():
            original = getattr(training, name, None)
            if original is None:
                raise ValueError(
                    f"this megatron-core has no training.{name}; 0.19.2 is the version that was read"
                )
            missing = [p for p in parameters if p not in inspect.signature(original).parameters]
            if missing:
                raise ValueError(
                    f"this megatron-core's training.{name} has no parameter {missing[0]}; 0.19.2 is the version read"
                )
        for name in _READ:
            setattr(training, name, _around(getattr(training, name), getattr(self, f"_{name}")))
        self._save = training.save_checkpoint_and_time

    # one method a function: called with the original, its bound arguments by name

    def _train(self, original: Callable[[], Any], given: dict[str, Any]) -> Any:
        self.model = given["model"]
        self.precision = self.loop.precision_before(self.model)
        return original()

    def _train_step(self, original: Callable[[], Any], given: dict[str, Any]) -> Any:
        self._rate = float(given["optimizer"].param_groups[0]["lr"])
        started, waited = time.perf_counter(), self.loop.waited_seconds
        result = original()
        self._seconds = time.perf_counter() - started
        self._data_seconds = self.loop.waited_seconds - waited
        if self._first:
            self._first = False
            self.precision = self.loop.precision_after(given["model"])
        return result

    def _training_log(self, original: Callable[[], Any], given: dict[str, Any]) -> Any:
        result = original()
        self.step = given["iteration"]
        nonfinite = self.loop.sum(self.loop.nonfinite())
        if self.recorder is not None:
            grad_norm = given["grad_norm"]
            self.reason = self.recorder.train(
                self.step,
                loss=float(given["loss_dict"][_LOSS]),
                grad_norm=math.nan if grad_norm is None else float(grad_norm),
                learning_rate=self._rate,
                nonfinite=nonfinite,
                seconds=self._seconds,
                data_seconds=self._data_seconds,
                peak_memory_bytes=self.loop.peak_memory_bytes(),
            )
        self.has_diverged = self.loop.tell(self.reason is not None)
        return result

    def _evaluate_and_print_results(self, original: Callable[[], Any], given: dict[str, Any]) -> None:
        step = given["iteration"]
        if self.has_diverged or step == self._validated_step:
            return
        self._validated_step = step
        started = time.perf_counter()
        sums = self.loop.validate(given["model"], given["config"], step)
        if self.recorder is not None:
            self.recorder.validation(step, sums, time.perf_counter() - started)

    def _save_checkpoint_and_time(self, original: Callable[[], Any], given: dict[str, Any]) -> Any:
        result = original()
        self._saved_step = step = given["iteration"]
        if self._state_dir is not None:
            tensors = state.tensors_folder(self._state_dir, step)
            write_sums(tensors, state.marks_folder(self._state_dir, step), self._rank)
        processes = self.loop.sum(1)  # a checkpoint is marked as complete once all have come here
        if self.recorder is not None:
            self.recorder.saved(step, processes=processes)
        return result

    def _checkpoint_and_decide_exit(self, original: Callable[[], Any], given: dict[str, Any]) -> bool:
        if self.has_diverged:
            log.warning("%s: diverged at step %d", self.segment.name, self.step)
            return True
        leaves = original()
        step = given["iteration"]
        if step in self.segment.kept_steps and step != self._saved_step and step != self.segment.end_step:
            self._save(
                step,
                given["model"],
                given["optimizer"],
                given["opt_param_scheduler"],
                given["num_floating_point_operations_so_far"],
                given["checkpointing_context"],
                train_data_iterator=given["train_data_iterator"],
            )
        return bool(leaves)


def _around(original: Callable[..., Any], handler: Callable[..., Any]) -> Callable[..., Any]:
    """`handler(call, arguments by name)` in place of `original`, with its signature."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return handler(lambda: original(*args, **kwargs), bound.arguments)

    return replaced
