"""How far each task of a campaign is: on the screen at each change, in OUT/status.json at all times.

    waiting   not begun; at the end with the reason       running   has a process on a GPU
    done      also when it was done before                failed    its process ended with an error
    stopped   asked to; the same command goes on          blocked   what it waits for failed
    no time   was not expected to end before the deadline

Does not: decide which task comes next (repro.campaign.driver), or read status.json (repro.campaign.folder).
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.campaign.folder import write_status
from repro.campaign.rates import Rates
from repro.campaign.tasks import Task

WAITING, RUNNING, DONE, FAILED, STOPPED, BLOCKED, LATE = (
    "waiting", "running", "done", "failed", "stopped", "blocked", "no time",
)  # fmt: skip


class Progress:
    """States of tasks: task name -> {"state", perhaps "reason", numbers}. `deadline` is in seconds since 1970."""

    def __init__(self, tasks: Sequence[Task], out: Path, rates: Rates) -> None:
        self.tasks, self.out, self.rates = tasks, out, rates
        self.deadline = 0.0
        self.notes: list[str] = []
        self.states: dict[str, dict[str, Any]] = {task.name: {"state": WAITING} for task in tasks}

    def of(self, name: str) -> str:
        """The state of a task, one of the words above."""
        return self.states[name]["state"]

    @property
    def done(self) -> set[str]:
        """Names of the tasks that are done."""
        return {name for name in self.states if self.of(name) == DONE}

    @property
    def waiting(self) -> list[Task]:
        """Tasks that have not begun, parents before children."""
        return [task for task in self.tasks if self.of(task.name) == WAITING]

    def found_done(self, name: str, **numbers: Any) -> None:
        """A task was done before this campaign began: noted, and not said."""
        self.states[name] = {"state": DONE, **numbers}

    def note(self, line: str) -> None:
        """Something that whoever starts the campaign should read; `start` prints it."""
        self.notes.append(line)
        print(line, flush=True)

    def set(self, name: str, state: str, reason: str = "", **numbers: Any) -> None:
        """A task's new state, said and written; what was known of the old one is forgotten."""
        self.states[name] = {"state": state, **({"reason": reason} if reason else {}), **numbers}
        print(f"{time.strftime('%H:%M:%S')} {name}: {state} {reason} {numbers or ''}", flush=True)
        self.write()

    def say_what_waits(self) -> None:
        """At the end: why a task has not begun."""
        for task in self.waiting:
            missing = [name for name in task.waits_for if self.of(name) != DONE]
            why = f"{missing[0]}: {self.of(missing[0])}" if missing else "asked to stop"
            self.set(task.name, WAITING, f"not begun; {why}")

    def write(self, *, finished: bool = False) -> None:
        """status.json, with the process number of the caller, who is taken for the driver."""
        content = {
            "pid": os.getpid(),
            "finished": finished,
            "time": round(time.time()),
            "deadline": round(self.deadline),
            "counts": Counter(state["state"] for state in self.states.values()),
            "rates": {name: round(rate) for name, rate in self.rates.measured.items()},
            "notes": self.notes,
            "tasks": self.states,
        }
        write_status(self.out, content)


def numbers_of(done: Path) -> dict[str, Any]:
    """What the status says of a segment that ended, from its done.json."""
    content = json.loads(done.read_text(encoding="utf-8"))
    provenance = content["provenance"]
    return {
        "status": content["status"],
        "tokens_per_second": provenance["tokens_per_second"],
        "validation_loss": content["final"].get("validation_loss"),
    }
