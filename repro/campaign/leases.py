"""configs/campaign/<tier>.yaml: which runs belong into which lease, on what machine, at what assumed rates.

Does not: run anything, read frozen runs (repro.campaign.tasks), or say how long they take (repro.campaign.forecast).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from repro.analysis.record import read_record
from repro.analysis.recorded import segment_path
from repro.campaign.machine import Machine
from repro.campaign.rates import Rates
from repro.campaign.schema import LeaseEntry, RatesEntry, read_campaign
from repro.campaign.tasks import Task, read_frozen, tasks_of
from repro.experiments import Plan, load
from repro.experiments.errors import nearest

#: Groups of one name: its evaluations and measurements, its runs, and what is left for the end.
_GROUPS = 3


@dataclass(frozen=True)
class Lease:
    """Runs of one lease: `runs` first, `then` if time is left; evaluate and measure name some of them.

    `per_gpu` replaces the machine's number of runs that share a GPU. `place` is the run's place among several names
    that were given at once (0 where it is missing): all of an earlier one comes before a later one.
    """

    name: str
    about: str
    runs: tuple[str, ...]
    then: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()
    measure: tuple[str, ...] = ()
    per_gpu: int | None = None
    is_sweep: bool = False
    place: Mapping[str, int] = field(default_factory=dict)

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
        """Tasks, and the number of each task's group.

        Of the first name 0: evaluate and measure, 1: runs, 2: then; of the second one 3, 4, 5; and so on. Tables come
        before later runs, as without its table a run's checkpoints are lost with the machine; they wait for their
        run, and do not bring it forward. A parent belongs to the first group of those that continue it.
        """
        tasks = tasks_of(frozen, (*self.runs, *self.then), evaluate=self.evaluate, measure=self.measure)
        named = {*self.runs, *self.then}
        last = _GROUPS * (max(self.place.values(), default=0) + 1)
        priority = {}
        for task in tasks:
            group = (2 if task.run in self.then else 1) if task.kind == "train" else 0
            priority[task.name] = _GROUPS * self.place.get(task.run, 0) + group if task.run in named else last
        for task in reversed(tasks):  # children before parents
            for parent in task.waits_for if task.kind == "train" else ():
                priority[parent] = min(priority[parent], priority[task.name])
        return tasks, priority


def _united(leases: Sequence[Lease], machine: Machine) -> Lease:
    """One lease of several; a run that stands in two belongs to the earlier one."""
    place: dict[str, int] = {}
    for number, lease in enumerate(leases):
        for run in (*lease.runs, *lease.then):
            place.setdefault(run, number)

    def first(key: str) -> Iterable[str]:
        return (
            run for number, lease in enumerate(leases) for run in getattr(lease, key) if place[run] == number
        )

    tables = {
        key: tuple(dict.fromkeys(run for lease in leases for run in getattr(lease, key)))
        for key in ("evaluate", "measure")
    }
    shared = {lease.machine(machine).per_gpu for lease in leases}
    return Lease(
        ", ".join(lease.name for lease in leases),
        "; ".join(lease.about for lease in leases if lease.about),
        tuple(first("runs")),
        tuple(first("then")),
        per_gpu=min(shared),  # what is to run alone on a GPU does so
        is_sweep=any(lease.is_sweep for lease in leases),
        place=place,
        **tables,
    )


@dataclass(frozen=True)
class CampaignFile:
    """One campaign file; `plan` is its tier's."""

    path: Path
    plan: Plan
    machine: Machine
    minutes: float
    rates: RatesEntry
    leases: Mapping[str, Lease]

    @property
    def tier(self) -> str:
        """Of all of its runs."""
        return self.plan.tier

    def new_rates(self) -> Rates:
        """The file's assumptions, with nothing measured yet."""
        return Rates(**self.rates.model_dump())

    def lease(self, names: Sequence[str], frozen: Path) -> Lease:
        """The lease of this name, or one made of several leases and runs.

        Raises:
            ValueError: a name that is neither a lease nor a run, with the nearest one; a run that is not frozen, or
                was frozen from another configuration than today's (or continues one that was).
        """
        parts = [self.leases[name] if name in self.leases else self._of_run(name) for name in names]
        lease = parts[0] if len(parts) == 1 else _united(parts, self.machine)
        for run in (*lease.runs, *lease.then):
            self._check_frozen(run, frozen)
        return lease

    def _check_frozen(self, run: str, frozen: Path) -> None:
        """A run frozen under an older configuration would be trained in full, and its record refused afterwards."""
        remedy = f"`repro freeze --tier {self.tier}`"
        if not (frozen / run).is_dir():
            raise ValueError(f"{frozen}: no frozen run {run!r}; write all of them with {remedy}")
        lineage = self.plan.sweep[run].segments if run in self.plan.sweep else self.plan.lineage(run)
        for name in dict.fromkeys(segment.run for segment in lineage):
            planned = {segment.index: segment.run_hash for segment in lineage if segment.run == name}
            found = {content["segment"]: content["run_hash"] for content in read_frozen(frozen, name)}
            for index, known in planned.items():
                if index not in found:
                    raise ValueError(f"{frozen / name / str(index)}: not frozen; {remedy} writes it")
                if found[index] != known:
                    raise ValueError(
                        f"{frozen / name / str(index)}: frozen from another configuration ({found[index]}) than "
                        f"{self.plan.configs_dir} holds now ({known}); {remedy} writes it again"
                    )
            if name == run and (left := sorted(found.keys() - planned.keys())):
                raise ValueError(
                    f"{frozen / run / str(left[0])}: left over from an earlier configuration, in which {run} had "
                    "more segments; delete it"
                )

    def _of_run(self, run: str) -> Lease:
        known = [*self.leases, *self.plan.runs, *self.plan.sweep]
        if run not in known:
            raise ValueError(f"{self.path}: no lease or run {run!r}{nearest(run, known)}")
        evaluate, measure = (
            (run,) if any(run in getattr(lease, key) for lease in self.leases.values()) else ()
            for key in ("evaluate", "measure")
        )
        return Lease(run, "", (run,), evaluate=evaluate, measure=measure)


def tier_of(path: Path) -> str:
    """The tier that a campaign file is for. Raises ValueError as `read_campaign` does."""
    return read_campaign(path).tier


def load_campaign(path: Path, *, configs: Path = Path("configs")) -> CampaignFile:
    """Reads a campaign file; a lease with `sweep: true` holds the runs of the tier's sweep.

    Raises:
        ValueError: the file is missing or says what it may not, names a run twice, or one that the tier has not.
    """
    entry = read_campaign(path)
    try:
        plan = load(entry.tier, configs_dir=configs)
    except ValueError as error:
        raise ValueError(f"{path}: tier: {error}") from None
    leases = {name: _lease(name, told, plan, path) for name, told in entry.leases.items()}
    seen: dict[str, str] = {}
    for name, lease in leases.items():
        for run in (*lease.runs, *lease.then):
            if run in seen:
                raise ValueError(f"{path}: leases.{name}: {run} stands in {seen[run]} already")
            seen[run] = name
    return CampaignFile(path, plan, Machine(**entry.machine.model_dump()), entry.minutes, entry.rates, leases)


def _lease(name: str, told: LeaseEntry, plan: Plan, path: Path) -> Lease:
    if told.sweep and not plan.sweep:
        raise ValueError(f"{path}: leases.{name}.sweep: tier {plan.tier} has no sweep of learning rates")
    known = {**plan.runs, **plan.sweep}
    for run in (*told.runs, *told.then):
        if run not in known:
            raise ValueError(
                f"{path}: leases.{name}: no run {run!r} at tier {plan.tier}{nearest(run, known)}"
            )
    return Lease(
        name,
        told.about,
        tuple(plan.sweep) if told.sweep else told.runs,
        told.then,
        told.evaluate,
        told.measure,
        told.per_gpu,
        told.sweep,
    )
