"""When tasks will end: the driver's own rule of what comes first, played through on places that nobody occupies.

Does not: start anything (repro.campaign.driver), know speeds (repro.campaign.rates), or foresee cold caches and GPUs
that others use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from repro.campaign.machine import Machine
from repro.campaign.rates import Rates
from repro.campaign.tasks import Task, chains


def expected_minutes(
    tasks: Sequence[Task], priority: Mapping[str, int], machine: Machine, rates: Rates
) -> float:
    """Minutes until the last task ends: the driver's own rule of what comes first, on simulated places."""
    places = [0.0] * (machine.gpus * machine.per_gpu)
    chain = chains(tasks, lambda task: rates.seconds(task, machine.per_gpu))
    ended: dict[str, float] = {}
    waiting = list(tasks)
    while waiting:
        now = min(places)
        ready = [task for task in waiting if all(ended.get(p, float("inf")) <= now for p in task.waits_for)]
        if not ready:
            # Nothing can start before the next task ends.
            later = [time for time in ended.values() if time > now]
            places[places.index(now)] = min(later)
            continue
        task = min(ready, key=lambda task: (priority[task.name], -chain[task.name]))
        place = places.index(now)
        seconds = rates.seconds(task, machine.per_gpu)
        if now and task.kind == "train" and machine.device == "cuda":
            seconds -= rates.safety * rates.start_seconds  # it starts while the one before it ends
        ended[task.name] = places[place] = now + seconds
        waiting.remove(task)
    return max(ended.values(), default=0.0) / 60
