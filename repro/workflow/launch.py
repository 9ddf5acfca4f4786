"""``python -m repro.workflow.launch --site SITE_YAML [--train | --keeps TEXT] -- COMMAND``: one rule's job.

Without --train it runs one rank. --keeps TEXT is for a command that keeps what it has done, and says so in lines that
hold TEXT: such a job queues itself again at its time limit, and fails there when nothing was kept since it started.

With --train (COMMAND: python -m BACKEND RUN_YAML ... --state DIR) a segment longer than the time limit is a chain of
jobs that needs nobody: shortly before the limit the ranks are told to stop (SIGTERM), save, and the job queues itself
again under its own number, which Snakemake sees as one job that waits. A crash is queued again too, as long as tries
get on; after `tries_without_progress` in a row that got nowhere the job fails with the reason. A stop from outside
(scancel, preemption) is Slurm's business: the ranks save, the job waits for its end. Exit codes: the command's own;
143 when stopped from outside; 1 when given up. Not here: starting ranks (repro.workflow.ranks), what they do.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from repro.options import OneLineParser
from repro.portable.frozen import load_frozen
from repro.workflow.ranks import Ranks
from repro.workflow.site import Site
from repro.workflow.slurm_job import SlurmJob
from repro.workflow.tries import SegmentFiles, Tries, show

STOPPED = 128 + signal.SIGTERM
# How long a job waits for the end that Slurm has announced, before it takes itself for a free one.
_PATIENCE_SECONDS = 900.0
_SHELL = os.getppid()


def main(arguments: list[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m repro.workflow.launch", description=__doc__)
    parser.add_argument("--site", type=Path, required=True, help="the cluster's file")
    parser.add_argument("--train", action="store_true", help="the command trains a segment: see above")
    parser.add_argument("--keeps", metavar="TEXT", help="goes on behind the time limit: see above")
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args(arguments)
    try:
        site, job = Site.load(options.site), SlurmJob.own()
        if options.train:
            return train(site, job, options.command)
        return run(site, job, options.command, keeps=options.keeps)
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(site: Site, job: SlurmJob, command: list[str], *, keeps: str | None) -> int:
    """The command as one rank; its exit code. Does not return when the job is queued again at its time limit."""
    warned, kept = threading.Event(), threading.Event()

    def note(line: str) -> None:
        if keeps and keeps in line:
            kept.set()

    ranks = Ranks(site, job, command, per_node=1, num_nodes=1, note=note)
    if keeps:
        warned = ranks.watch(site.warn_seconds, threading.Event())
    code = ranks.wait()
    if code == STOPPED and warned.is_set():
        if not kept.is_set():
            show("error: given up: nothing was kept up to the time limit; raise `time_limit_minutes`\n")
            return 1
        show("time limit near; queued again to go on\n")
        return _queue_again(job, STOPPED, show)
    if code == STOPPED:  # scancel or preemption; an end before Slurm's own would make a failure of the latter
        _wait_for_the_end()
    return code


def train(site: Site, job: SlurmJob, command: list[str]) -> int:
    """One try at a segment; returns the exit code, or does not return when the job is queued again."""
    tail = OneLineParser(prog="--train", add_help=False)
    tail.add_argument("run_yaml", type=Path)
    tail.add_argument("--state", type=Path, required=True)
    frozen = tail.parse_known_args(command[3:])[0]
    segment = load_frozen(frozen.run_yaml, backend=None)
    files = SegmentFiles.of(frozen.run_yaml, segment.content, frozen.state)
    tries = Tries(files, job=job.number, invocation=job.invocation)
    if not tries.held:
        tries.tell(f"{tries.holder} trains this segment already; queued again behind it")
        return _queue_again(job, STOPPED, tries.tell)
    if refused := tries.begin(limit=site.tries_without_progress):
        tries.tell(f"given up: {refused}")
        return 1
    step = files.newest_step()
    tries.tell(f"on {job.nodes}: {f'goes on from step {step}' if step else 'starts'}")

    outside = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: outside.set())

    def note(line: str) -> None:
        if "damaged checkpoint left out" in line:
            tries.tell(line)

    shape = {"per_node": max(1, job.gpus_per_node), "num_nodes": job.num_nodes, "saves": True}
    ranks = Ranks(site, job, command, **shape, note=note)
    warned = ranks.watch(site.warn_seconds, outside)
    code = ranks.wait()
    if files.is_complete and not files.published.exists():
        # Another job of this segment started meanwhile, and Snakemake cleared the outputs for it: publish once more.
        code = Ranks(site, job, command, **shape).wait()
    ended = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
    if files.is_complete and files.published.exists():
        if code:
            tries.tell(f"a rank {ended} when all was trained and written, which harms nothing")
        tries.end("complete")
        tries.tell("complete")
        return 0

    where = f"at step {files.newest_step()}"
    if outside.is_set() or (code == 0 and not warned.is_set()):
        # scancel or preemption: the controller has decided about this job, and says so within its grace time.
        tries.end("stopped from outside", counts=False)
        tries.tell(f"told to stop by Slurm (scancel, preemption or drain); saved {where}")
        if outside.is_set():  # the job itself was told as well: this is its end
            return STOPPED
        tries.release()
        _wait_for_the_end()
        return _queue_again(job, STOPPED, tries.tell)
    broken = ranks.last_error() or f"a rank {ended}"
    reason = "time limit near" if code == 0 else broken
    got_on, count = tries.end(reason)
    if not got_on and count >= site.tries_without_progress:
        tries.tell(f"given up: no progress in {count} tries, {where}: {reason}")
        return code or 1
    state = (
        f"saved {where}"
        if got_on
        else f"no progress in {count} of {site.tries_without_progress} tries, {where}"
    )
    tries.tell(f"{reason}; {state}; queued again")
    tries.release()
    return _queue_again(job, code or STOPPED, tries.tell)


def _queue_again(job: SlurmJob, code: int, tell: Callable[[str], None]) -> int:
    """Ends here with the job, which starts again later; `code` when Slurm does not want to."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    refusal = job.queue_again()
    if refusal is None:
        _wait_for_the_end()
        refusal = "Slurm took the order and did not act on it"
    tell(f"could not be queued again ({refusal}); left to Snakemake's retries")
    return code


def _wait_for_the_end() -> None:
    """Until Slurm ends this job. A shell that ended before us is that end too: not all clusters end what is left."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and os.getppid() == _SHELL:
        time.sleep(0.5)
    if os.getppid() != _SHELL:
        sys.exit(STOPPED)


if __name__ == "__main__":
    sys.exit(main())
