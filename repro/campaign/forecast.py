"""When tasks will end: the driver's own rule of what comes first, played through on places that nobody occupies.

    expected_ends      task -> seconds until it ends, of those that fit the time
    expected_minutes   until the last one ends, however long that takes
    lost_tables        what to say of a run that is trained although no time is left for its table

Does not: start anything (repro.campaign.driver), know speeds (repro.campaign.rates), or foresee cold caches and GPUs
that others use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from repro.campaign.machine import Machine
from repro.campaign.rates import Rates
from repro.campaign.tasks import Task, chains


def expected_ends(
    tasks: Sequence[Task],
    priority: Mapping[str, int],
    machine: Machine,
    rates: Rates,
    *,
    seconds: Callable[[Task], float] | None = None,
    within: float = math.inf,
) -> dict[str, float]:
    """Task -> seconds from now until it ends, in the order in which they begin.

    A task that would end after `within` is not begun and missing, as are those that wait for it. What a task waits
    for and is not among `tasks` is done. `seconds` of a task replaces what the rates say of the whole of it.
    """
    needed = {task.name: seconds(task) if seconds else rates.seconds(task, machine.per_gpu) for task in tasks}
    chain = chains(tasks, lambda task: needed[task.name])
    overlap = rates.safety * rates.start_seconds if machine.device == "cuda" else 0.0
    places = [0.0] * (machine.gpus * machine.per_gpu)
    ended: dict[str, float] = {}
    waiting = list(tasks)

    def ready_at(task: Task) -> float:
        """When all that it waits for has ended; infinity before that is known."""
        return max(
            (ended.get(name, math.inf if name in needed else 0.0) for name in task.waits_for), default=0.0
        )

    while waiting:
        now = min(places)
        place = places.index(now)
        ready = [task for task in waiting if ready_at(task) <= now]
        if not ready:
            # Nothing can start before the next task ends.
            later = [time for time in ended.values() if time > now]
            if not later:
                break
            places[place] = min(later)
            continue
        task = min(ready, key=lambda task: (priority.get(task.name, 0), -chain[task.name]))
        waiting.remove(task)
        # A run starts while the one before it ends, unless that is what it waits for.
        hidden = min(overlap, now - ready_at(task)) if task.kind == "train" else 0.0
        end = now + needed[task.name] - hidden
        if end <= within:
            ended[task.name] = places[place] = end
    return ended


def expected_minutes(
    tasks: Sequence[Task], priority: Mapping[str, int], machine: Machine, rates: Rates
) -> float:
    """Minutes until the last task ends."""
    return max(expected_ends(tasks, priority, machine, rates).values(), default=0.0) / 60


def lost_tables(tasks: Sequence[Task], ends: Mapping[str, float]) -> str:
    """One line that names the tables that miss in `ends` although their runs do not; empty without any."""
    names = {task.name for task in tasks}
    lost = [
        task.name
        for task in tasks
        if task.kind != "train"
        and task.name not in ends
        and all(name in ends or name not in names for name in task.waits_for)
    ]
    if not lost:
        return ""
    return (
        f"NO TIME FOR {', '.join(lost)}, though the run is trained: its checkpoints go with the machine, and a later "
        "lease trains it again. Give more minutes, or name the run before others"
    )
