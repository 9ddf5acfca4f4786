"""What a campaign does, as tasks with dependencies, read from frozen runs.

A task trains one segment, evaluates a run's kept checkpoints, or measures its mechanisms. A segment waits for the
segment it continues; an evaluation or measurement for all segments of its run. Tasks stand in the order in which the
runs were asked for, parents before children.

Does not: know time or GPUs (repro.campaign.driver), or write anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from repro.portable.frozen import load_frozen

Kind = Literal["train", "evaluate", "measure"]


@dataclass(frozen=True)
class Task:
    """One process. `tokens` are those that it trains (0 for the other kinds); `cost_class` groups equal speeds."""

    name: str
    kind: Kind
    run: str
    segment: int
    tokens: int
    cost_class: str
    waits_for: tuple[str, ...]
    run_hash: str = ""
    start_tokens: int = 0


def read_frozen(folder: Path, run: str) -> list[dict[str, Any]]:
    """The run.yaml of every segment of a run, in order.

    Raises:
        ValueError: the run is not frozen in `folder`, or the portable trainer would not take a file.
    """
    paths = sorted((folder / run).glob("*/run.yaml"), key=lambda path: int(path.parent.name))
    if not paths:
        raise ValueError(f"{folder}: no frozen run {run!r}; write it with `repro freeze --tier <its tier>`")
    try:
        return [load_frozen(path).content for path in paths]
    except ValueError as error:
        raise ValueError(f"{error}; `repro freeze --tier <its tier>` writes it again") from None


def tasks_of(
    folder: Path, runs: Iterable[str], *, evaluate: Iterable[str] = (), measure: Iterable[str] = ()
) -> list[Task]:
    """Tasks of `runs` and of every segment that they continue.

    A parent that is continued half-way contributes only the segments up to the fork, unless it is asked for itself.
    Raises:
        ValueError: a run, or one that it continues, is not frozen, or was frozen against another state of its parent.
    """
    frozen: dict[str, list[dict[str, Any]]] = {}
    tasks: dict[str, Task] = {}

    def contents(run: str) -> list[dict[str, Any]]:
        if run not in frozen:
            frozen[run] = read_frozen(folder, run)
        return frozen[run]

    def add(run: str, segment: int) -> str:
        name = f"{run}/{segment}"
        if name in tasks:
            return name
        content = contents(run)[segment]
        parent = content["init_from"]
        waits: tuple[str, ...] = ()
        if parent is not None:
            known = contents(parent["run"])[parent["segment"]]["run_hash"]
            if known != parent["run_hash"]:
                raise ValueError(
                    f"{folder}/{name}: continues {parent['run']}/{parent['segment']} of another configuration "
                    "(its hash differs); `repro freeze --tier <its tier>` writes both again"
                )
            waits = (add(parent["run"], parent["segment"]),)
        schedule = content["schedule"]
        tasks[name] = Task(
            name,
            "train",
            run,
            segment,
            schedule["end_tokens"] - schedule["start_tokens"],
            cost_class_of(content),
            waits,
            content["run_hash"],
            schedule["start_tokens"],
        )
        return name

    wanted = list(dict.fromkeys(runs))
    for run in wanted:
        for segment in range(len(contents(run))):
            add(run, segment)
    for kind, chosen in (("evaluate", evaluate), ("measure", measure)):
        for run in chosen:
            if run in wanted:
                waits = tuple(f"{run}/{segment}" for segment in range(len(contents(run))))
                name = f"{kind}:{run}"
                tasks[name] = Task(name, kind, run, -1, 0, f"{contents(run)[0]['family']} {kind}", waits)
    return list(tasks.values())


def cost_class_of(content: dict[str, Any]) -> str:
    """Family and block formats ("8b nvfp4", "8b mxfp4+nvfp4"): what decides the speed of a segment, near enough."""
    recipe = content["recipe"]
    formats = {rule["format"] for gemm in ("fprop", "dgrad", "wgrad") for rule in recipe[gemm].values()}
    return f"{content['family']} {'+'.join(sorted(formats - {'bf16'})) or 'bf16'}"


def chains(tasks: Sequence[Task], seconds: Callable[[Task], float]) -> dict[str, float]:
    """Task -> its seconds and those of the longest chain that waits for it."""
    longest: dict[str, float] = {}
    chain: dict[str, float] = {}
    for task in reversed(tasks):  # children before parents
        chain[task.name] = seconds(task) + longest.get(task.name, 0.0)
        for parent in task.waits_for:
            longest[parent] = max(longest.get(parent, 0.0), chain[task.name])
    return chain


def with_dependants(tasks: Sequence[Task], lost: str) -> set[str]:
    """`lost` and every task that waits for it, directly or not."""
    gone = {lost}
    for task in tasks:  # parents stand before children
        if gone & set(task.waits_for):
            gone.add(task.name)
    return gone
