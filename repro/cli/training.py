"""`repro show RUN --command`: the commands that train a run, and all that they set, to be read against the paper.

A portable run's arguments are its frozen run.yaml; a cluster run's are megatron-core's, each with its source. Not
here: running anything. Reads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from repro.cluster.command import run_text
from repro.cluster.layout import LAYOUTS
from repro.cluster.paths import decide, emulated_runs
from repro.cluster.site import EMULATE_VARIABLE, LAYOUT_VARIABLE, emulation_here, layout_here
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
    decision = decide(run.recipe, emulate=emulation_here(emulate))
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
    chosen, said_by = layout_here(layout)
    yield f"# layout {chosen.name} as said by {said_by}"
    yield "# one process a GPU, started by torchrun or srun; each of them sets and passes on:"
    yield from run_text(run, chosen, emulate=emulation_here(emulate)).splitlines()


def emulated(plan: Plan) -> frozenset[str]:
    """Names of the runs whose 4-bit products are computed in software."""
    return emulated_runs(plan, emulate=plan.backend == "cluster" and emulation_here(None))
