"""``python -m repro.campaign COMMAND``: see docs/campaign.md for a lease step by step.

Exit status of run and wait: 0 all done, 3 something is not done (status.json says what and why), 2 wrong input, 130
stopped (Ctrl-C). A run at work saves first instead, and ends with 3; what `start` has started goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from repro.campaign import session
from repro.options import OneLineParser, amount, whole_number

DEFAULT_OUT = Path("/tmp/campaign")
_AFTER_SWEEP = """then, before any other lease:
    python -m repro.campaign record ARCHIVE              keeps the runs of the sweep
    python -m repro.analysis.recorded sweep --tier {tier}  each family's best rate, kept in recorded/{tier}/sweep.csv
    configs/tiers/{tier}.yaml: families.<family>.learning_rate_max = the best rate, learning_rate_min = a hundredth
    repro freeze --tier {tier}; repro freeze --golden       every later run takes these rates"""


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        return chosen.act(chosen)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        goes_on = "; a started campaign goes on" if chosen.command in ("start", "wait") else ""
        print(f"python -m repro.campaign {chosen.command}: stopped{goes_on}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m repro.campaign", description=__doc__.split("\n")[0])
    parser.add_argument("--campaign", type=Path, default=Path("configs/campaign/proxy.yaml"))
    parser.add_argument("--frozen", type=Path, help="frozen runs (default: results/<tier>/runs)")
    parser.add_argument("--configs", type=Path, default=Path("configs"))
    parser.add_argument(
        "--recorded", type=Path, default=Path("recorded"), help="what is in there is not run again"
    )
    commands = parser.add_subparsers(dest="command", required=True)

    plan = commands.add_parser("plan", help="leases with their runs, tokens and minutes")
    plan.add_argument("lease", nargs="*", help="default: all; of several also what one `start` of them takes")
    plan.add_argument("--gpus", type=whole_number())
    plan.set_defaults(act=_plan)

    for name, act in (("run", _run), ("start", session.start)):
        command = commands.add_parser(name, help="train, evaluate and measure what fits")
        command.add_argument("names", nargs="+", metavar="LEASE|RUN")
        command.add_argument("--data", type=Path, required=True, help="prepared data")
        command.add_argument("--out", type=Path, default=DEFAULT_OUT)
        command.add_argument(
            "--minutes", type=amount("minutes"), help="from now on (default: the campaign file's)"
        )
        command.add_argument(
            "--deadline", type=amount("seconds since 1970"), help="seconds since 1970, instead of --minutes"
        )
        command.add_argument("--gpus", type=whole_number())
        command.add_argument("--per-gpu", type=whole_number(), help="runs that share a GPU")
        command.add_argument("--device", choices=("cuda", "cpu"), help="cpu: a machine without a GPU")
        command.add_argument("--threads", type=whole_number())
        command.add_argument("--keep-states", action="store_true", help="keep the checkpoints of ended runs")
        command.set_defaults(act=act)

    wait = commands.add_parser("wait", help="follow a started campaign for some minutes")
    wait.add_argument("--out", type=Path, default=DEFAULT_OUT)
    wait.add_argument("--minutes", type=amount("minutes"), default=9.0)
    wait.set_defaults(act=session.wait)

    collecting = commands.add_parser("collect", help="finished segments and tables as one archive")
    collecting.add_argument("--from", dest="source", type=Path, default=DEFAULT_OUT)
    collecting.add_argument("--out", type=Path, required=True)
    collecting.set_defaults(act=_collect)

    record = commands.add_parser("record", help="keep an archive's content in recorded/<tier>")
    record.add_argument("archives", type=Path, nargs="+")
    record.set_defaults(act=_record)
    return parser


def _campaign(chosen: argparse.Namespace):  # noqa: ANN202 - (campaign file, folder of frozen runs)
    from repro.campaign.leases import load_campaign

    campaign = load_campaign(chosen.campaign, configs=chosen.configs)
    return campaign, chosen.frozen or Path("results") / campaign.tier / "runs"


def _plan(chosen: argparse.Namespace) -> int:
    from repro.campaign.choice import SAVING_SECONDS
    from repro.campaign.forecast import expected_ends, expected_minutes, lost_tables

    campaign, frozen = _campaign(chosen)
    whole = campaign.machine
    if chosen.gpus is not None:
        whole = dataclasses.replace(whole, gpus=chosen.gpus)

    def left_of(names: Sequence[str]):  # noqa: ANN202 - the lease of what is not recorded of them
        return campaign.lease(names, frozen).without_recorded(frozen, chosen.recorded / campaign.tier)

    def expect(title: str, lease) -> tuple[list, float, float]:  # noqa: ANN001 - tasks, tokens, minutes
        """Prints what `start` of a lease is expected to take."""
        tasks, priority = lease.tasks(frozen)
        of = tasks, priority, lease.machine(whole), campaign.new_rates()
        tokens, minutes = sum(task.tokens for task in tasks), expected_minutes(*of)
        fits = (
            ""
            if minutes <= campaign.minutes
            else "  LONGER THAN A LEASE: what does not fit is left for another"
        )
        print(
            f"\n{title}: {tokens / 1e6:,.0f}M tokens, {minutes:.1f} minutes, {of[2].per_gpu} runs a GPU{fits}"
        )
        in_time = expected_ends(*of, within=60 * campaign.minutes - SAVING_SECONDS)
        if lost := lost_tables(tasks, in_time):
            print(f"  {lost}")
        return tasks, tokens, minutes

    leases = {name: left_of([name]) for name in chosen.lease or campaign.leases}
    print(
        f"{whole.gpus} GPUs, {whole.per_gpu} runs on each, {campaign.minutes:g} minutes of training a lease"
    )
    total_tokens, total_minutes = 0, 0.0
    for name, lease in leases.items():
        tasks, tokens, minutes = expect(name, lease)
        total_tokens, total_minutes = total_tokens + tokens, total_minutes + minutes
        print(f"  {lease.about}")
        if lease.is_sweep:
            print(f"  {_AFTER_SWEEP.format(tier=campaign.tier)}")
        for run in dict.fromkeys(task.run for task in tasks):
            own = [task for task in tasks if task.run == run and task.kind == "train"]
            marks = [key for key in ("evaluate", "measure") if run in getattr(lease, key)]
            marks += ["if time is left"] if run in lease.then else []
            words = f"  ({', '.join(marks)})" if marks else ""
            print(f"    {run:32} {sum(task.tokens for task in own) / 1e6:7.1f}M  {own[0].cost_class}{words}")
    print(f"\ntotal, one lease after another: {total_tokens / 1e6:,.0f}M tokens, {total_minutes:.0f} minutes")
    if chosen.lease and len(leases) > 1:
        expect(f"together, `start {' '.join(leases)}`", left_of([*leases]))
    return 0


def _run(chosen: argparse.Namespace) -> int:
    from repro.campaign.driver import Campaign
    from repro.campaign.machine import commands
    from repro.campaign.preflight import check_machine, link_data

    campaign, frozen = _campaign(chosen)
    lease = campaign.lease(chosen.names, frozen).without_recorded(frozen, chosen.recorded / campaign.tier)
    given = {key: getattr(chosen, key) for key in ("gpus", "per_gpu", "device", "threads")}
    machine = dataclasses.replace(
        lease.machine(campaign.machine), **{k: v for k, v in given.items() if v is not None}
    )
    minutes = campaign.minutes if chosen.minutes is None else chosen.minutes
    deadline = time.time() + 60 * minutes if chosen.deadline is None else chosen.deadline
    tasks, priority = lease.tasks(frozen)
    if not tasks:
        names = ", ".join(chosen.names)
        raise ValueError(
            f"{names}: already recorded in {chosen.recorded / campaign.tier}; "
            "`--recorded none` before `run` trains again"
        )
    out, data = chosen.out.resolve(), chosen.data.resolve()
    out.mkdir(parents=True, exist_ok=True)
    link_data(out, data)
    check_machine(machine, tasks, frozen)
    driver = Campaign(
        tasks,
        out,
        frozen,
        machine,
        campaign.new_rates(),
        commands(out, data, machine, tier=campaign.tier, configs=chosen.configs),
        priority,
        keep_states=chosen.keep_states,
    )
    return 0 if driver.run(deadline) else 3


def _collect(chosen: argparse.Namespace) -> int:
    from repro.campaign.collect import ARCHIVE, collect
    from repro.campaign.leases import tier_of

    content = collect(chosen.source, chosen.out, tier=tier_of(chosen.campaign))
    size = (chosen.out / ARCHIVE).stat().st_size
    for why in content["left_out"]:
        print(f"left out: {why}", file=sys.stderr)
    print(f"{len(content['records'])} segments, {len(content['tables'])} tables, {size / 1e6:.2f} MB")
    return 0


def _record(chosen: argparse.Namespace) -> int:
    from repro.campaign.collect import keep
    from repro.campaign.leases import tier_of
    from repro.experiments import load

    plan = load(tier_of(chosen.campaign), configs_dir=chosen.configs)
    for archive in chosen.archives:
        number, refused = keep(archive, chosen.recorded, plan)
        print(f"{archive}: {number} segments kept in {chosen.recorded / plan.tier}")
        for why in refused:
            print(f"refused: {why}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
