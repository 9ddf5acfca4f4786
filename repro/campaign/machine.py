"""A machine of a campaign: its GPUs and how they are shared, and what the process of a task is there.

Does not: start anything (repro.campaign.driver), or look whether the machine has what it says (.preflight).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from repro.campaign.tasks import Task


@dataclass
class Machine:
    """GPUs and how they are shared; device "cpu" stands for one without."""

    device: str = "cuda"
    gpus: int = 1
    per_gpu: int = 1
    threads: int = 4

    @property
    def places(self) -> list[int]:
        """GPU number of every place, round robin, so that a second run goes to another GPU first."""
        return [gpu for _ in range(self.per_gpu) for gpu in range(self.gpus)]

    def environment(self, gpu: int) -> dict[str, str]:
        """Of a process that works on one of the GPUs: it sees no other."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        if self.device == "cuda":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)
        return environment


def commands(
    out: Path, data: Path, machine: Machine, *, tier: str, configs: Path
) -> Callable[[Task], list[str]]:
    """The command of each kind of task."""
    python = [sys.executable, "-m"]

    def command(task: Task) -> list[str]:
        if task.kind == "train":
            arguments = [str(out / "runs" / task.name / "run.yaml"), "--data", str(data)]
            arguments += ["--state", str(out / "state"), "--threads", str(machine.threads)]
            return [*python, "repro.portable", *arguments, "--device", machine.device]
        shared = [task.run, "--results", str(out), "--configs", str(configs), "--device", machine.device]
        if task.kind == "measure":
            return [*python, "repro.mechanisms", *shared]
        return [*python, "repro.evaluate.scorer", *shared, "--evals", str(configs / "evals" / f"{tier}.yaml")]

    return command
