"""`repro plan`: what a tier, an element or a run costs, before anything runs."""

from __future__ import annotations

from typing import Annotated

import typer

from repro.analysis.paper_file import check_elements
from repro.cli import training
from repro.cli.console import CONFIGS, ConfigsOption, TierOption, load_plan, print_table, say
from repro.experiments import describe, elements
from repro.experiments.cost import Cost, total, with_lineage
from repro.experiments.errors import nearest

_HEADER = ("", "segments", "tokens", "steps", "FLOPs", "device time", "checkpoints")
#: repro.experiments.cost, of the operands of one product.
_TWO_FORMATS = "a product of two formats takes the slower one's, with BF16 among them BF16's"


def plan_command(
    target: Annotated[
        str | None, typer.Argument(metavar="[ELEMENT|RUN]", help="default: the whole tier")
    ] = None,
    tier: TierOption = None,
    configs: ConfigsOption = CONFIGS,
) -> None:
    """Tokens, steps, FLOPs, device time and checkpoint bytes, before anything runs."""
    plan = load_plan(tier, configs)
    found = check_elements(plan)
    if target is None:
        names, title = list(plan.runs), f"Every run of tier {plan.tier}"
    elif target in found:
        names = with_lineage(plan, elements.runs_of(found[target], plan))
        title = f"What {target} needs at tier {plan.tier}, with the runs it forks from"
    elif target in plan.runs:
        names, title = with_lineage(plan, [target]), f"{target} at tier {plan.tier}, with what it forks from"
    else:
        raise ValueError(f"no element or run {target!r}{nearest(target, [*found, *plan.runs])}")
    emulated = training.emulated(plan)

    def sum_of(names: list[str]) -> tuple[str, ...]:
        return _cells(total(plan, names, emulated=emulated))

    print_table(title, _HEADER, [*((name, *sum_of([name])) for name in names), ("total", *sum_of(names))])
    if target is None and found:
        per_element = [
            (element.name, *sum_of(with_lineage(plan, elements.runs_of(element, plan))))
            for element in found.values()
        ]
        print_table("Per element (runs are shared: the rows do not add up)", _HEADER, per_element)
    rates = plan.spec.cost
    sustained = ", ".join(f"{base} {rate:.2g}" for base, rate in rates.flops_per_second.items())
    say(
        f"device time: {rates.device} at sustained FLOP/s of {sustained}; {_TWO_FORMATS}; {rates.source}",
        f"emulated: {', '.join(name for name in names if name in emulated)}" if emulated else "",
        "FLOPs: 3 x forward of matrix products, causal attention and Mamba-2 scan; no data, no evaluation",
        f"checkpoints: {rates.state_bytes_per_parameter} bytes a parameter, those that stand at the end",
    )
    say(
        *dict.fromkeys(f"{plan.runs[name].family} {note}" for name in names for note in plan.runs[name].notes)
    )


def _cells(cost: Cost) -> tuple[str, ...]:
    return (
        f"{cost.num_segments:,}",
        describe.amount(cost.tokens),
        f"{cost.steps:,}",
        f"{cost.flops:.3g}",
        describe.duration(cost.device_hours),
        describe.amount(cost.checkpoint_bytes) + "B",
    )
