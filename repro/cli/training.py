"""`repro show RUN --command`: the commands that train a run, and all that they set, to be read against the paper.

A portable run's arguments are its frozen run.yaml; a cluster run's are megatron-core's, each with its source. Not
here: running anything. Reads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from repro.cli.site import setting
from repro.cluster.__main__ import EMULATE_VARIABLE, LAYOUT_VARIABLE
from repro.cluster.command import run_text
from repro.cluster.layout import DEFAULT_LAYOUT, LAYOUTS, Layout, load_layout
from repro.cluster.paths import decide, emulated_runs
from repro.experiments import Plan, Run

LayoutOption = Annotated[
    str | None,
    typer.Option(
        help=f"with --command: a file of {LAYOUTS}; default: ${LAYOUT_VARIABLE}, else the site's (slurm/site.yaml)"
    ),
]
EmulateOption = Annotated[
    bool | None,
    typer.Option(
        "--emulate/--no-emulate",
        help=f"of a cluster run: 4-bit operands in software; default: ${EMULATE_VARIABLE}, else the site's",
    ),
]


def path_line(plan: Plan, run: Run, emulate: bool | None) -> str:
    """Which path a cluster run's precision takes, and why; "" for a portable run."""
    if plan.backend != "cluster":
        return ""
    decision = decide(run.recipe, emulate=_emulated(emulate))
    return f"path:    {decision.path}: {'; '.join(decision.reasons)}"


def commands(plan: Plan, run: Run, results: Path, layout: str | None, emulate: bool | None) -> Iterator[str]:
    """One command a segment; for the cluster backend then what it hands on to megatron-core.

    Raises ValueError with the nearest name for a layout that is not there, and who asks for it.
    """
    for segment in run.segments:
        folders = f"--data {results / 'data'} --state {results / 'state'}"
        yield f"python -m repro.{plan.backend} {results / segment.folder / 'run.yaml'} {folders}"
    if plan.backend != "cluster":
        return
    chosen, said_by = _layout(layout)
    yield f"# layout {chosen.name} as said by {said_by}"
    yield "# one process a GPU, started by torchrun or srun; each of them sets and passes on:"
    yield from run_text(run, chosen, emulate=_emulated(emulate)).splitlines()


def emulated(plan: Plan) -> frozenset[str]:
    """Names of the runs whose 4-bit products are computed in software."""
    return emulated_runs(plan, emulate=plan.backend == "cluster" and _emulated(None))


def _layout(asked: str | None) -> tuple[Layout, str]:
    """The layout, and who says so."""
    if asked is not None:
        return load_layout(asked), "--layout"
    value, said_by = setting(LAYOUT_VARIABLE)
    if value is None:
        return load_layout(DEFAULT_LAYOUT), "nobody: the one that jobs take then; --layout names another"
    try:
        return load_layout(value), f"{said_by}; --layout names another"
    except ValueError as error:
        raise ValueError(f"{said_by}: {error}") from None


def _emulated(asked: bool | None) -> bool:
    if asked is not None:
        return asked
    value, said_by = setting(EMULATE_VARIABLE)
    if value not in (None, "0", "1"):
        raise ValueError(f"{said_by}: {value!r} is neither 0 nor 1")
    return value == "1"
