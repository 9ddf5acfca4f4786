"""`repro freeze`, `check` and `compare`: what the workflow is given, what came out, and whether it did so again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from repro.analysis.recorded import DEFAULT_RECORDED
from repro.cli.console import (
    CONFIGS,
    ConfigsOption,
    ResultsOption,
    TierOption,
    load_plan,
    print_table,
    results_of,
    say,
    tier_name,
    workflow,
)
from repro.experiments import freeze_all, load
from repro.experiments.errors import nearest
from repro.experiments.golden import GOLDEN_DIR, write_golden

#: Exit code of a comparison without a measure.
_NOT_KNOWN = 3
_COLUMNS = ("claim", "element", "paper", "ours", "verdict", "reason")


def freeze_command(
    tier: TierOption = None,
    configs: ConfigsOption = CONFIGS,
    results: ResultsOption = None,
    golden: Annotated[
        bool, typer.Option("--golden", help="renew the golden texts instead; all tiers, or the one given")
    ] = False,
) -> None:
    """Write the frozen runs of a tier, or renew their golden texts."""
    if golden:
        tiers = [tier] if tier else sorted(path.stem for path in (configs / "tiers").glob("*.yaml"))
        for name in tiers:
            written, removed = write_golden(load(name, configs_dir=configs))
            say(f"{GOLDEN_DIR / name}: {len(written)} renewed, {len(removed)} removed")
        return
    plan = load_plan(tier, configs)
    folder = results_of(plan.tier, results, configs)
    written = freeze_all(plan, folder)
    number = len(list(plan.segments)) + len(plan.sweep)
    say(f"{folder}: {len(written)} of {number} frozen runs written, the others are unchanged")


def check_command(
    tier: TierOption = None,
    configs: ConfigsOption = CONFIGS,
    results: ResultsOption = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="those of the records, in results/<tier>-recorded")
    ] = False,
) -> None:
    """The verdicts that `snakemake check` wrote; exit code 1 when an exact claim is not reproduced."""
    name = tier_name(tier, configs)
    _check_tier(name, configs)
    path = results_of(name, results, configs, recorded=recorded) / "check.json"
    verdicts = _read_verdicts(path, name, recorded, configs)
    rows = [[verdict[column] for column in _COLUMNS] for verdict in verdicts]
    print_table(f"Claims at tier {name}", _COLUMNS, rows)
    counts = Counter(verdict["verdict"] for verdict in verdicts)
    say(", ".join(f"{number} {verdict}" for verdict, number in counts.most_common()))
    failed = [v["claim"] for v in verdicts if v["kind"] == "exact" and v["verdict"] != "reproduced"]
    if failed:
        say(f"exact claims that do not hold: {', '.join(failed)}")
        raise typer.Exit(1)


def compare_command(
    run: Annotated[str, typer.Argument(help="a run that is trained in results/<tier> and recorded")],
    tier: TierOption = None,
    configs: ConfigsOption = CONFIGS,
    results: ResultsOption = None,
    recorded: Annotated[Path, typer.Option(help="folder of the records")] = DEFAULT_RECORDED,
) -> None:
    """A repeated run against its record; exit code 1: further away than two seeds may end, 3: that is not known."""
    # Brings pandas, which the other commands do without.
    from repro.analysis.repeats import compare, spread_of

    plan = load_plan(tier, configs)
    found = compare(plan, run, results_of(plan.tier, results, configs), recorded)
    say(*(comparison.words() for comparison in found))
    apart = found[-1].per_cent
    if apart is None or all(comparison.is_equal for comparison in found):
        return
    family = {**plan.runs, **plan.sweep}[run].family
    spread = spread_of(plan, family, recorded)
    if spread is None:
        say(
            f"no run of the {family} model is recorded with several seeds: how far two may lie apart is not known"
        )
        raise typer.Exit(_NOT_KNOWN)
    limit = spread.limit(1, 1)
    is_near = abs(apart) <= limit
    say(
        f"two seeds of the {family} model may end {limit:.2f} % apart (95 %; sd {spread.sd:.2g} %, "
        f"{spread.dof} degrees of freedom): {'inside' if is_near else 'OUTSIDE'}"
    )
    if not is_near:
        raise typer.Exit(1)


def _check_tier(tier: str, configs: Path) -> None:
    """Raises ValueError for a tier that configs/tiers does not hold; quicker than loading its plan."""
    known = sorted(path.stem for path in (configs / "tiers").glob("*.yaml"))
    if tier not in known:
        raise ValueError(f"no tier {tier!r} in {configs / 'tiers'}{nearest(tier, known)}")


def _what_writes_it(tier: str, recorded: bool, configs: Path) -> str:
    """The command that makes the check of a tier, and the one of the records where there are some."""
    kept = sorted(path.name for path in DEFAULT_RECORDED.glob("*") if path.is_dir())
    if recorded and tier not in kept:
        others = f"; recorded are runs of tier {', '.join(kept)}: add `--tier {kept[0]}`" if kept else ""
        return f"no run of tier {tier} is recorded{others}"
    if recorded:
        return f"`make recorded` writes it, or `snakemake --cores 2 check --config tier={tier} recorded=true`"
    words = f"`{workflow(tier, configs)} check --config tier={tier}` writes it"
    if tier in kept:
        words += (
            f" after training; of the records: `make recorded`, then `repro check --recorded --tier {tier}`"
        )
    return words


def _read_verdicts(path: Path, tier: str, recorded: bool, configs: Path) -> list[dict[str, Any]]:
    """The list of verdicts in check.json. Raises ValueError naming the file when it is missing or cut off."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; {_what_writes_it(tier, recorded, configs)}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not readable as JSON, the file is cut off ({error})") from None
    verdicts = content.get("claims") if isinstance(content, dict) else None
    if not isinstance(verdicts, list) or not verdicts:
        raise ValueError(f"{path}: holds no claims")
    missing = {key for verdict in verdicts for key in (*_COLUMNS, "kind") if key not in verdict}
    if missing:
        raise ValueError(f"{path}: a claim lacks {', '.join(sorted(missing))}")
    return verdicts
