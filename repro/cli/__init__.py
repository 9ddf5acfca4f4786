"""`repro`: what there is to run, what it needs, what it costs, what came out.

    repro list [--runs]             elements and runs of a tier
    repro show fig8 | 12b_rht4      an element or a run: origin, change, claims, command
    repro show 12b_rht4 --command   all arguments and the environment of its training
    repro plan [fig10]              tokens, FLOPs, device-hours, bytes before anything runs
    repro diff 12b_nvfp4 12b_rht4   what really differs between two runs (TIER:RUN compares tiers)
    repro freeze                    writes the frozen runs (the workflow does so by itself)
    repro check                     the verdicts of a tier; exit code 1 when an exact claim fails
    repro check --recorded -t proxy the same of the records, after `make recorded`
    repro compare 8b_nvfp4          a repeated run against its record; exit code 1 outside the spread, 3 unknown
    repro quantize IN.npy ...       the quantiser on a file
    repro bench                     formats, layer and training step on this machine, against what it can do

Reads configs/, paper_figures/*/paper.yaml and results/ of the folder it is called in. Wrong input ends with one line
and exit code 2. Only `quantize` and `bench` import torch, only `compare` pandas. Nothing here trains or draws: that
is the workflow's.
"""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from repro.cli import cost, inspect, results


class _OneLineErrors(TyperGroup):
    """Ends with `error: ...` and exit code 2 where the user's input is at fault, without a traceback."""

    def invoke(self, ctx: typer.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `repro ... | head`: the reader has all that it wants; click ends quietly
            raise
        except (ValueError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Reproduction of 'Pretraining Large Language Models with NVFP4' (arXiv 2509.25149).",
)
app.command("list")(inspect.list_command)
app.command("show")(inspect.show_command)
app.command("plan")(cost.plan_command)
app.command("diff")(inspect.diff_command)
app.command("freeze")(results.freeze_command)
app.command("check")(results.check_command)
app.command("compare")(results.compare_command)


_BRINGS_ITS_OWN_OPTIONS = {"ignore_unknown_options": True, "allow_extra_args": True}


@app.command(add_help_option=False, context_settings=_BRINGS_ITS_OWN_OPTIONS)
def bench(ctx: typer.Context) -> None:
    """Time formats, layer and training step on this machine: repro bench --rows nvfp4 --json FILE."""
    from repro.bench.__main__ import main as run_bench  # runs without typer too: python -m repro.bench

    status = run_bench(ctx.args, prog="repro bench")
    sys.stdout.flush()  # here and not at exit, where a pipe that the reader closed could not be caught
    raise typer.Exit(status)


@app.command(add_help_option=False, context_settings=_BRINGS_ITS_OWN_OPTIONS)
def quantize(ctx: typer.Context) -> None:
    """Quantise a tensor file: repro quantize IN.npy --format nvfp4 --out OUT.npz."""
    from repro.numerics.command import (
        quantize_command,
    )  # brings torch, which the commands on plans do without

    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command()(quantize_command)
    command(args=ctx.args, prog_name="repro quantize")


def main() -> None:
    """Entry point of the `repro` script."""
    app(prog_name="repro")
