"""`repro list`, `repro show`, `repro diff`: what there is, what it is made of, how two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from repro.analysis.claims_file import load_claims
from repro.analysis.paper_file import check_elements
from repro.cli import training
from repro.cli.console import (
    CONFIGS,
    ConfigsOption,
    ResultsOption,
    TierOption,
    load_plan,
    print_table,
    results_of,
    say,
    workflow,
)
from repro.cli.training import EmulateOption, LayoutOption
from repro.experiments import Plan, Run, describe, elements
from repro.experiments.cost import total, with_lineage
from repro.experiments.elements import Element
from repro.experiments.errors import nearest

_RUN_HEADER = ("run", "from", "change", "tokens", "steps")


def list_command(
    tier: TierOption = None,
    configs: ConfigsOption = CONFIGS,
    runs: Annotated[
        bool, typer.Option("--runs", help="runs alone, one a line, the name first, no heading")
    ] = False,
) -> None:
    """Elements and runs of a tier."""
    plan = load_plan(tier, configs)
    if runs:
        lines = [_run_row(run) for run in plan.runs.values()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        say(*("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines))
        return
    rows = []
    emulated = training.emulated(plan)
    for element in check_elements(plan).values():
        names = elements.runs_of(element, plan)
        steps = total(plan, with_lineage(plan, names), emulated=emulated).steps
        rows.append((element.name, element.title, len(names), f"{steps:,}", " ".join(element.claims)))
    print_table(f"Elements at tier {plan.tier}", ("element", "title", "runs", "steps", "claims"), rows)
    print_table(f"Runs at tier {plan.tier}", _RUN_HEADER, [_run_row(run) for run in plan.runs.values()])


def show_command(
    name: Annotated[str, typer.Argument(metavar="ELEMENT|RUN")],
    tier: TierOption = None,
    configs: ConfigsOption = CONFIGS,
    results: ResultsOption = None,
    command: Annotated[
        bool, typer.Option("--command", help="of a run: all arguments and the environment of its training")
    ] = False,
    layout: LayoutOption = None,
    emulate: EmulateOption = None,
) -> None:
    """What an element needs, or what a run is made of."""
    plan = load_plan(tier, configs)
    found = check_elements(plan)
    if layout and not command:
        raise ValueError(f"--layout {layout}: without effect but for the arguments of a run; add --command")
    if plan.backend != "cluster" and (layout is not None or emulate is not None):
        option = "--layout" if layout is not None else "--emulate, --no-emulate"
        raise ValueError(
            f"{option}: without effect on the {plan.backend} runs of tier {plan.tier}; for cluster runs: --tier paper"
        )
    if command and name in found:
        names = ", ".join(elements.runs_of(found[name], plan))
        raise ValueError(f"{name} is an element, --command wants a run: {names or 'it has none'}")
    if command:
        results_dir = results_of(plan.tier, results, configs)
        typer.echo("\n".join(training.commands(plan, plan.run(name), results_dir, layout, emulate)))
    elif name in plan.runs:
        _show_run(plan, plan.run(name), emulate)
    elif name in found:
        _show_element(plan, found[name], configs)
    else:
        raise ValueError(f"no element or run {name!r}{_hint(name, plan, found)}")


def _hint(name: str, plan: Plan, found: Mapping[str, Element]) -> str:
    """The tail of a message: which element judges a claim of this name, else the nearest element or run."""
    for element in found.values():
        if name.lower() in (claim.lower() for claim in element.claims):
            return f"; {element.name} judges that claim: `repro show {element.name}`"
    return nearest(name.lower(), [*found, *plan.runs])


def diff_command(
    a: Annotated[str, typer.Argument(metavar="RUN")],
    b: Annotated[str, typer.Argument(metavar="RUN")],
    tier: TierOption = None,
    configs: ConfigsOption = CONFIGS,
) -> None:
    """The resolved difference of two runs; TIER:RUN looks in another tier."""
    (plan_a, run_a), (plan_b, run_b) = (_in_tier(name, tier, configs) for name in (a, b))
    rows = describe.difference(plan_a, run_a, plan_b, run_b)
    if rows:
        print_table(f"{a} against {b}", ("key", a, b), rows)
    else:
        say(f"{a} and {b} do not differ in anything that influences their numbers")


def _in_tier(name: str, tier: str | None, configs: Path) -> tuple[Plan, str]:
    prefix, colon, run = name.rpartition(":")
    return load_plan(prefix if colon else tier, configs), run


def _run_row(run: Run) -> tuple[str, ...]:
    steps = f"{run.num_tokens // run.step_tokens:,}"
    return (run.name, describe.origin(run), describe.change(run), describe.amount(run.num_tokens), steps)


def _show_element(plan: Plan, element: Element, configs: Path) -> None:
    say(f"{element.name}: {element.title}", element.caption)
    names = elements.runs_of(element, plan)
    if names:
        print_table(f"Runs at tier {plan.tier}", _RUN_HEADER, [_run_row(plan.run(name)) for name in names])
    for kind in ("evaluations", "mechanisms"):
        if wanted := getattr(element, kind):
            say(f"{kind} of: {', '.join(wanted)}")
    if element.bench:
        say("GEMM rates of this machine")
    if element.claims:
        stated = load_claims(configs / "claims.yaml")
        rows = [(name, stated[name].statement, _number(stated[name].numbers)) for name in element.claims]
        print_table("Claims, in our words and the paper's numbers", ("claim", "statement", "the paper"), rows)
    cost = total(plan, with_lineage(plan, names), emulated=training.emulated(plan))
    say(
        f"{cost.steps:,} steps, {describe.amount(cost.tokens)} tokens with the runs they fork from; "
        f"see `repro plan {element.name}`",
        f"command: {workflow(plan.tier, configs)} {element.name} --config tier={plan.tier}",
    )


def _number(numbers: dict[str, Any]) -> str:
    """A claim's number, or its order from the best on; "" where the paper gives none."""
    if "order" in numbers:
        groups = [group if isinstance(group, list) else [group] for group in numbers["order"]]
        return " > ".join(" = ".join(map(str, group)) for group in groups)
    return next((_in_words(numbers[key]) for key in ("value", "drawn") if key in numbers), "")


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_in_words(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_in_words, value))
    return f"{value:,.15g}" if isinstance(value, int | float) else str(value)


def _show_run(plan: Plan, run: Run, emulate: bool | None) -> None:
    entry = run.derived.entry
    say(
        f"{run.name}: {run.label} ({run.family}, tier {plan.tier}, seed {run.seed})",
        f"from:    {describe.origin(run)}",
        f"change:  {describe.change(run)}",
        training.path_line(plan, run, emulate),
        f"told in: {run.derived.file}",
        f"paper:   {entry.source}" if entry.source else "",
        f"note:    {entry.note}" if entry.note else "",
        f"used by: {', '.join(run.elements)}; claims {', '.join(run.claims)}" if run.elements else "",
    )
    print_table("Recipe", ("GEMM", "operand", "rule"), describe.recipe_rows(run))
    rows = []
    for segment in run.segments:
        tokens = f"{segment.start_tokens:,} - {segment.end_tokens:,}"
        steps = f"{segment.num_tokens // run.step_tokens:,}"
        continues = f"{segment.parent[0]} segment {segment.parent[1]}" if segment.parent else "-"
        rows.append((segment.index, tokens, steps, continues, segment.folder, segment.run_hash))
    print_table("Segments", ("segment", "tokens", "steps", "continues", "folder", "hash"), rows)
    say(*run.notes)
