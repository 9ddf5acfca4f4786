"""Runs tasks on the GPUs at hand until all are done or the time is up.

    OUT/runs/<run>/<segment>/{run.yaml,metrics.jsonl,done.json}   as the workflow's results folder has them
    OUT/state/  OUT/data  OUT/evaluations/  OUT/mechanisms/       likewise; OUT/data points to the prepared data
    OUT/logs/  OUT/status.json  OUT/lock                          repro.campaign.folder

Before it begins it says which tables are not expected to be made in time. Until a segment has trained its first step
a GPU gets one run alone: it fills the caches of compiled kernels, which the others then read. At the deadline running
segments are asked to stop: they save themselves, and the same command goes on with them later on the same machine; it
also takes over what a killed driver left running. What is done already (its hash is in OUT/state) is not repeated.

Does not: choose what comes next (repro.campaign.choice), tell how far it is (repro.campaign.progress), or know what a
process does.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.campaign.choice import SAVING_SECONDS, Choice
from repro.campaign.folder import has_trained, last_line, lock, log_of
from repro.campaign.machine import Machine
from repro.campaign.orphans import stop_orphans
from repro.campaign.progress import BLOCKED, DONE, FAILED, LATE, RUNNING, STOPPED, Progress, numbers_of
from repro.campaign.rates import Rates
from repro.campaign.tasks import Task, with_dependants

_POLL_SECONDS = 0.2
_STOPPED = 128 + signal.SIGTERM


@dataclass
class _Running:
    task: Task
    process: subprocess.Popen[bytes]
    place: int
    started: float


@dataclass
class Campaign:
    """Tasks on a machine. `priority`: task name -> number of its group, the lowest first."""

    tasks: Sequence[Task]
    out: Path
    frozen: Path
    machine: Machine
    rates: Rates
    command: Callable[[Task], list[str]]
    priority: Mapping[str, int] = field(default_factory=dict)
    keep_states: bool = False

    def __post_init__(self) -> None:
        self.progress = Progress(self.tasks, self.out, self.rates)
        self.choice = Choice(self.out, self.machine, self.rates, self.priority, self.progress)
        self._running: list[_Running] = []
        self._stop = False
        self._warm = self.machine.device != "cuda"

    def run(self, deadline: float) -> bool:
        """Works until `deadline` (time.time()); returns whether every task is done.

        Raises ValueError when another driver works in `out`.
        """
        self.progress.deadline = deadline
        with lock(self.out), self._signals():
            stop_orphans(self.out, seconds=SAVING_SECONDS)
            self._prepare()
            while True:
                self._reap()
                late = time.time() > deadline - SAVING_SECONDS
                if (late or self._stop) and self._running:
                    self._stop_all()
                if not (late or self._stop):
                    self._start_what_fits()
                if not self._running:
                    break
                time.sleep(_POLL_SECONDS)
            for task in () if self._stop else self.choice.ready():
                left, needed = deadline - time.time(), self.choice.seconds(task)
                self.progress.set(task.name, LATE, f"needs {needed:.0f} s, {max(left, 0):.0f} s are left")
            self.progress.say_what_waits()
            self.progress.write(finished=True)
        return len(self.progress.done) == len(self.tasks)

    # what is there already

    def _prepare(self) -> None:
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        for task in self.tasks:
            if task.kind != "train":
                if self._table(task).is_file():
                    self.progress.found_done(task.name)
                continue
            target = self.out / "runs" / task.name / "run.yaml"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.frozen / task.name / "run.yaml", target)
            done = self.out / "state" / task.run_hash / "done.json"
            if done.is_file() and (target.parent / "done.json").is_file():
                numbers = numbers_of(done)
                self.progress.found_done(task.name, **numbers)
                self._learn(task, numbers)
        if line := self.choice.lost_tables():
            self.progress.note(line)
        self.progress.write()

    def _learn(self, task: Task, numbers: dict[str, Any]) -> None:
        """A run that diverged spent its short time on compiling: its rate says nothing of others."""
        if numbers["status"] == "completed":
            self.rates.learn(task, numbers["tokens_per_second"])

    def _table(self, task: Task) -> Path:
        folder = {"evaluate": "evaluations", "measure": "mechanisms"}[task.kind]
        return self.out / folder / f"{task.run}.csv"

    # starting

    def _start_what_fits(self) -> None:
        held: dict[int, list[Task]] = {}
        for running in self._running:
            held.setdefault(running.place, []).append(running.task)
        for task, place in self.choice.starts(held):
            if len(self._running) >= self.machine.gpus and not self._is_warm():
                return
            self._start(task, place)

    def _is_warm(self) -> bool:
        """Whether a segment has trained a step, or is done: compiled kernels lie in the machine's caches then."""
        self._warm = self._warm or any(
            has_trained(log_of(self.out, running.task.name)) for running in self._running
        )
        return self._warm

    def _start(self, task: Task, place: int) -> None:
        gpu = self.machine.places[place]
        environment = self.machine.environment(gpu)
        with log_of(self.out, task.name).open("ab") as file:
            process = subprocess.Popen(
                self.command(task), stdout=file, stderr=subprocess.STDOUT, env=environment
            )
        self._running.append(_Running(task, process, place, time.time()))
        self.progress.set(task.name, RUNNING, gpu=gpu, pid=process.pid)

    # ending

    def _reap(self) -> None:
        for running in list(self._running):
            code = running.process.poll()
            if code is None:
                continue
            self._running.remove(running)
            task, seconds = running.task, round(time.time() - running.started, 1)
            asked = self.progress.states[task.name].get("asked_to_stop")
            if code == 0:
                self._warm = True
                numbers = {}
                if task.kind == "train":
                    numbers = numbers_of(self.out / "runs" / task.name / "done.json")
                    self._learn(task, numbers)
                self.progress.set(task.name, DONE, seconds=seconds, **numbers)
                self._drop_states()
            elif code == _STOPPED:
                self.progress.set(task.name, STOPPED, "saved; the same command goes on", seconds=seconds)
            elif asked and code < 0:
                self.progress.set(
                    task.name, STOPPED, "not saved; the same command begins it anew", seconds=seconds
                )
            else:
                why = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
                last = last_line(log_of(self.out, task.name))
                self.progress.set(task.name, FAILED, f"{why}; its log ends: {last}", seconds=seconds)
                for name in with_dependants(self.tasks, task.name) - {task.name}:
                    self.progress.set(name, BLOCKED, f"{task.name} failed")

    def _stop_all(self) -> None:
        for running in self._running:
            if self.progress.states[running.task.name].get("asked_to_stop"):
                continue
            self.progress.states[running.task.name]["asked_to_stop"] = True
            with contextlib.suppress(ProcessLookupError):
                running.process.terminate()
        until = time.time() + SAVING_SECONDS
        for running in self._running:
            # A machine that goes back takes the process with it: nothing is gained by waiting longer.
            try:
                running.process.wait(max(0.0, until - time.time()))
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()

    def _drop_states(self) -> None:
        """Checkpoints of segments that nothing waits for any more; done.json and metrics stay."""
        if self.keep_states:
            return
        needed = {
            name
            for task in self.tasks
            if self.progress.of(task.name) != DONE
            for name in (task.name, *task.waits_for)
        }
        for task in self.tasks:
            if task.kind == "train" and task.name not in needed:
                for folder in (self.out / "state" / task.run_hash).glob("step_*"):
                    shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def _signals(self) -> Any:
        def ask(number: int, frame: object) -> None:
            self._stop = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
