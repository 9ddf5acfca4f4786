"""configs/campaign/<tier>.yaml: which runs belong into which lease, on what machine, at what assumed rates.

Does not: run anything, or read frozen runs (repro.campaign.tasks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from repro.analysis.record import read_record
from repro.analysis.recorded import segment_path
from repro.campaign.machine import Machine
from repro.campaign.rates import Rates
from repro.campaign.tasks import Task, chains, read_frozen, tasks_of

_KEYS = ("about", "sweep", "runs", "then", "evaluate", "measure", "per_gpu")


@dataclass(frozen=True)
class Lease:
    """Runs of one lease: `runs` first, `then` if time is left; evaluate and measure name some of them.

    `per_gpu` replaces the machine's number of runs that share a GPU.
    """

    name: str
    about: str
    runs: tuple[str, ...]
    then: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()
    measure: tuple[str, ...] = ()
    per_gpu: int | None = None
    is_sweep: bool = False

    def machine(self, machine: Machine) -> Machine:
        """The machine as this lease shares it."""
        return replace(machine, per_gpu=self.per_gpu) if self.per_gpu else machine

    def without_recorded(self, frozen: Path, recorded: Path) -> Lease:
        """What is left to do: runs whose end is not recorded in `recorded` with its frozen hash, and missing tables.

        A run whose table is missing is trained again, as its checkpoints went with the machine.
        """
        ends = {run: read_frozen(frozen, run)[-1] for run in (*self.runs, *self.then)}

        def is_trained(run: str) -> bool:
            path = segment_path(recorded, run, ends[run]["segment"])
            return path.is_file() and read_record(path)["run_hash"] == ends[run]["run_hash"]

        def lacks(kind: str, run: str) -> bool:
            return not (is_trained(run) and (recorded / kind / f"{run}.csv.xz").is_file())

        evaluate = tuple(run for run in self.evaluate if lacks("evaluations", run))
        measure = tuple(run for run in self.measure if lacks("mechanisms", run))
        left = {run for run in ends if not is_trained(run)} | {*evaluate, *measure}
        runs, then = (tuple(run for run in names if run in left) for names in (self.runs, self.then))
        return replace(self, runs=runs, then=then, evaluate=evaluate, measure=measure)

    def tasks(self, frozen: Path) -> tuple[list[Task], dict[str, int]]:
        """Tasks, and the number of each task's group (0: runs, 1: evaluate and measure, 2: then)."""
        tasks = tasks_of(frozen, (*self.runs, *self.then), evaluate=self.evaluate, measure=self.measure)
        priority = {task.name: 2 * (task.run in self.then) if task.kind == "train" else 1 for task in tasks}
        return tasks, priority


@dataclass(frozen=True)
class CampaignFile:
    """One campaign file."""

    path: Path
    tier: str
    machine: Machine
    minutes: float
    rates: Mapping[str, Any]
    leases: Mapping[str, Lease]

    def new_rates(self) -> Rates:
        """The file's assumptions, with nothing measured yet."""
        return Rates(**self.rates)

    def lease(self, names: Sequence[str], frozen: Path) -> Lease:
        """One lease of this name, or one made of runs named singly.

        Raises:
            ValueError: a name that is neither a lease nor a frozen run, with the nearest one.
        """
        if len(names) == 1 and names[0] in self.leases:
            return self.leases[names[0]]
        known = [path.name for path in frozen.iterdir() if path.is_dir()] if frozen.is_dir() else []
        for name in names:
            if name not in known:
                close = get_close_matches(name, [*self.leases, *known], n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ValueError(f"{self.path}: no lease or frozen run {name!r}{hint}")
        evaluate, measure = (
            tuple(run for run in names if any(run in getattr(lease, key) for lease in self.leases.values()))
            for key in ("evaluate", "measure")
        )
        return Lease("named runs", "", tuple(names), evaluate=evaluate, measure=measure)


def tier_of(path: Path) -> str:
    """The tier that a campaign file is for. Raises ValueError when there is no such file."""
    try:
        return str(yaml.safe_load(path.read_text(encoding="utf-8"))["tier"])
    except (OSError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no campaign file ({error})") from None


def load_campaign(path: Path, *, frozen: Path) -> CampaignFile:
    """Reads a campaign file; a lease with `sweep: true` holds the frozen runs of the tier's sweep.

    Raises:
        ValueError: the file is missing, has an unknown key, or names a run twice.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: no campaign file ({error})") from None
    leases = {}
    seen: dict[str, str] = {}
    for name, entry in content["leases"].items():
        for key in entry:
            if key not in _KEYS:
                raise ValueError(f"{path}: leases.{name}: unknown key {key!r}; known: {', '.join(_KEYS)}")
        runs = tuple(entry.get("runs", ()))
        if entry.get("sweep"):
            runs = tuple(sorted(folder.name for folder in frozen.glob("*_rate_*em*")))
        for run in (*runs, *entry.get("then", ())):
            if run in seen:
                raise ValueError(f"{path}: leases.{name}: {run} stands in {seen[run]} already")
            seen[run] = name
        leases[name] = Lease(
            name,
            str(entry.get("about", "")),
            runs,
            per_gpu=entry.get("per_gpu"),
            is_sweep=bool(entry.get("sweep")),
            **{key: tuple(entry.get(key, ())) for key in ("then", "evaluate", "measure")},
        )
    return CampaignFile(
        path,
        content["tier"],
        Machine(**content.get("machine", {})),
        float(content["minutes"]),
        content["rates"],
        leases,
    )


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
