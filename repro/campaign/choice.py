"""Which task is started next, and on which place of a GPU.

A task may start when all that it waits for is done, a place is free, and it is expected to end before the deadline.
Among those that may the first group of the lease comes first, and in a group the longest chain of what still has to
follow. A place is free that is empty, or whose segment is nearly through, so that the next one imports and compiles
meanwhile; not to a task that is less urgent than what waits for that segment (its table, its next segment).

Does not: start anything (repro.campaign.driver), or know speeds (repro.campaign.rates).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.campaign.folder import log_of, seconds_left
from repro.campaign.forecast import expected_ends, lost_tables
from repro.campaign.machine import Machine
from repro.campaign.progress import Progress
from repro.campaign.rates import Rates
from repro.campaign.tasks import Task, chains

#: Seconds before the deadline at which running segments are asked to save themselves; nothing is to end later.
SAVING_SECONDS = 30.0


@dataclass
class Choice:
    """`priority`: task name -> number of its group, the lowest first; 0 where it is missing."""

    out: Path
    machine: Machine
    rates: Rates
    priority: Mapping[str, int]
    progress: Progress

    def seconds(self, task: Task) -> float:
        """Expected seconds of what is left of a task: a stopped segment goes on where it saved itself."""
        saved = task.run_hash and sorted((self.out / "state" / task.run_hash).glob("step_*/meta.json"))
        done = json.loads(saved[-1].read_text("utf-8"))["tokens"] - task.start_tokens if saved else 0
        return self.rates.seconds(task, self.machine.per_gpu, tokens_done=done)

    def ready(self) -> list[Task]:
        """Waiting tasks whose parents are done."""
        done = self.progress.done
        return [task for task in self.progress.waiting if set(task.waits_for) <= done]

    def starts(self, held: Mapping[int, Sequence[Task]]) -> Iterator[tuple[Task, int]]:
        """Tasks to start now, the most urgent first, each with its place; `held`: place -> tasks that run there."""
        free, urgency = self._free_places(held), self._urgency()
        for task in sorted(self.ready(), key=lambda task: urgency[task.name]):
            if not free:
                return
            own = urgency[task.name]
            place = next(
                (place for place, heirs in free.items() if all(own <= urgency[heir.name] for heir in heirs)),
                None,
            )
            if place is not None and self._fits(task):
                del free[place]
                yield task, place

    def lost_tables(self) -> str:
        """One line on the tables that there is no time for after their runs, before anything is started; or empty."""
        waiting = self.progress.waiting
        left = self.progress.deadline - SAVING_SECONDS - time.time()
        ends = expected_ends(
            waiting, self.priority, self.machine, self.rates, seconds=self.seconds, within=left
        )
        return lost_tables(waiting, ends)

    def _urgency(self) -> dict[str, tuple[int, float]]:
        """Of each waiting task; the least is the most urgent."""
        chain = chains(self.progress.waiting, self.seconds)
        return {name: (self.priority.get(name, 0), -seconds) for name, seconds in chain.items()}

    def _fits(self, task: Task) -> bool:
        return time.time() + self.seconds(task) <= self.progress.deadline - SAVING_SECONDS

    def _free_places(self, held: Mapping[int, Sequence[Task]]) -> dict[int, list[Task]]:
        """Empty places, then those of a segment that is ending, with the tasks that its end makes ready."""
        places = range(len(self.machine.places))
        free: dict[int, list[Task]] = {place: [] for place in places if not held.get(place)}
        for place, there in held.items():
            if there and all(self._is_ending(task) for task in there):
                free[place] = [heir for task in there for heir in self._made_ready_by(task)]
        return free

    def _is_ending(self, task: Task) -> bool:
        """Whether a segment on a GPU has no more to do than another one needs to start."""
        if self.machine.device != "cuda" or task.kind != "train":
            return False
        left = seconds_left(log_of(self.out, task.name))
        return left is not None and left <= self.rates.start_seconds

    def _made_ready_by(self, ending: Task) -> list[Task]:
        """Waiting tasks for which nothing but this one is missing, and that there is time for."""
        done = {*self.progress.done, ending.name}
        return [
            task
            for task in self.progress.waiting
            if ending.name in task.waits_for and set(task.waits_for) <= done and self._fits(task)
        ]
