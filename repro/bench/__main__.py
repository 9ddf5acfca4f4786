"""``python -m repro.bench``, also as ``repro bench``: the table of this machine, on a GPU or a CPU.

A short run takes one to two minutes and leaves out the training steps of the larger models; ``--full`` takes medians
of many repetitions of every row. ``--rows`` chooses rows by name: part of a name, or with * and ? the whole name.
Rows that need what is not here say so; ``--list`` names those of the other kind of device too. Run it from the
project's folder: layers and steps read configs/.

Exit code 0: measured. 1: a row broke (it is named). 2: wrong input, in one line, before anything is measured.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.bench.options import device_named
from repro.options import OneLineParser

if TYPE_CHECKING:
    from repro.bench.machine import Machine
    from repro.bench.report import ResultsFile
    from repro.bench.rows import Case, Row


def main(argv: list[str] | None = None, *, prog: str = "python -m repro.bench") -> int:
    description, _, details = (__doc__ or "").partition("\n\n")
    parser = OneLineParser(
        prog=prog,
        description=description,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", nargs="+", default=[], metavar="PATTERN", help="e.g. qdq 'layer/nvfp4/*'")
    parser.add_argument("--list", action="store_true", help="names of the rows, measuring nothing")
    parser.add_argument("--full", action="store_true", help="medians of many, every row (many minutes)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the rows with versions, device, date")
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: the GPU where there is one")
    parser.add_argument(
        "--configs", type=Path, default=Path("configs"), help="folder of the recipes and tiers"
    )
    options = parser.parse_args(argv)
    try:
        return _run(options)
    except ValueError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{prog}: stopped", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    # Before CUDA starts: the trainer's own setting, so that its products are what is timed.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    from repro.bench.machine import FULL, SHORT, Machine
    from repro.bench.report import results_file
    from repro.bench.rows import choose

    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    machine = Machine(device_named(kind), effort=FULL if options.full else SHORT, configs=options.configs)
    own, elsewhere, other_kind = all_cases(machine), cases_elsewhere(machine), _other_kind(machine)
    if options.list:
        listed = choose([*own, *elsewhere], options.rows, is_full=options.full)
        for case in listed:
            place = f"; measured on a {other_kind} only" if case in elsewhere else ""
            print(f"{case.name:38} {case.what}{place}")
        return 0
    chosen = choose(own, options.rows, is_full=options.full, elsewhere=elsewhere)
    check_configs([case for case in chosen if case in own], machine)
    kept = results_file(options.json)
    warnings.filterwarnings("ignore", category=UserWarning)  # torch's advice, between the lines of a table
    return run_cases(chosen, machine, describe(machine, is_full=options.full), kept)


def run_cases(
    cases: list[Case],
    machine: Machine,
    facts: dict[str, Any],
    kept: ResultsFile | None,
    *,
    legend: str | None = None,
) -> int:
    """Measures, prints and keeps the cases one by one; the exit code: 1 when a row broke."""
    from repro.bench import report
    from repro.bench.rows import run_case

    print(report.header(facts, legend or report.LEGEND), flush=True)
    rows: list[Row] = []
    for case in cases:
        rows.append(run_case(case))
        print(report.line(rows[-1]), flush=True)
        if kept:
            measured = [row.as_dict() for row in rows]
            kept.write({**facts, "ceilings": machine.ceilings(), "rows": measured})
    summary = report.summary(rows, facts)
    print(f"\n{summary}" if summary else "")
    return int(any(row.failed for row in rows))


def all_cases(machine: Machine) -> list[Case]:
    """Every row of the benchmark on this machine, in the order of the table."""
    from repro.bench.layers import layer_cases
    from repro.bench.passes import pass_cases
    from repro.bench.products import product_cases, storage_cases
    from repro.bench.steps import step_cases
    from repro.bench.stored_passes import stored_cases

    return [
        case
        for cases in (product_cases, storage_cases, pass_cases, stored_cases, layer_cases, step_cases)
        for case in cases(machine)
    ]


def cases_elsewhere(machine: Machine) -> list[Case]:
    """The rows that a GPU has and a CPU lacks, or the other way round; each says so when it is measured."""
    import torch

    from repro.bench.rows import only_elsewhere

    other = copy.copy(machine)  # names its rows and nothing more
    other.device = torch.device("cpu" if machine.is_gpu else "cuda")
    return only_elsewhere(all_cases(machine), all_cases(other), kind=_other_kind(machine))


def _other_kind(machine: Machine) -> str:
    return "CPU" if machine.is_gpu else "GPU"


def check_configs(cases: list[Case], machine: Machine) -> None:
    """Raises ValueError where a row would not find, or could not use, what it reads in --configs."""
    from repro.bench.layers import load_recipe_of
    from repro.bench.steps import load_plan, make_case

    names = [case.name.split("/") for case in cases if case.name.startswith(("layer/", "step/"))]
    if names and not machine.configs.is_dir():
        raise ValueError(
            f"--configs {machine.configs}: no such folder; layers and steps read it (configs in the project's "
            "folder), other rows do without: --rows qdq"
        )
    steps = [name[1:] for name in names if name[0] == "step"]
    try:
        for recipe in sorted({name[1] for name in names if name[0] == "layer"} - {"bf16_tensors"}):
            load_recipe_of(machine, recipe)
        if steps:
            plan = load_plan(machine)
            for model, recipe in steps:
                make_case(plan, model, recipe, batch=0, micro=0)
    except ImportError:
        return  # each row says which package it needs
    except ValueError as error:
        raise ValueError(f"--configs {machine.configs}: {error}") from None


def describe(machine: Machine, *, is_full: bool) -> dict[str, Any]:
    """Provenance, what the machine emulates, and whether it does other work."""
    from repro.portable import provenance

    run = {"run": "full" if is_full else "short", "emulation": machine.emulation, "busy": machine.busy}
    return {**provenance.describe(machine.device), **run}


if __name__ == "__main__":
    sys.exit(main())
