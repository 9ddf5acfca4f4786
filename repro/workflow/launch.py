"""``python -m repro.workflow.launch --site SITE_YAML [--train] -- COMMAND``: a rule's command on the job's nodes.

One launcher for 1 to n nodes. It starts one rank a GPU (one a node without GPUs) through srun with RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR and MASTER_PORT from Slurm's own variables; the port is free on the first node and follows
from the job's number, so that jobs which share a node don't meet. Without --train it runs one rank and that is all.

With --train (COMMAND: python -m BACKEND RUN_YAML ... --state DIR) a segment longer than the time limit is a chain of
jobs that needs nobody: shortly before the limit the ranks are told to stop (SIGTERM), save, and the job queues itself
again under its own number, which Snakemake sees as one job that waits. A crash is queued again too, as long as tries
get on; after `tries_without_progress` in a row that got nowhere the job fails with the reason. A stop from outside
(scancel, preemption) is Slurm's business: the ranks save, the job waits for its end. Exit codes: the command's own;
143 when stopped from outside; 1 when given up. Not here: what the command does (repro.portable).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

from repro.experiments.errors import read_mapping
from repro.workflow.site import Site
from repro.workflow.slurm_job import SlurmJob
from repro.workflow.tries import SegmentFiles, Tries, show

STOPPED = 128 + signal.SIGTERM
# How long a job waits for the end that Slurm has announced, before it takes itself for a free one.
_PATIENCE_SECONDS = 900.0
_SHELL = os.getppid()
_FIRST_PORT, _NUM_PORTS = 20000, 10000  # below the ports that kernels give to outgoing connections

# A stop that a rank was asked for is no failure: with its code srun would end the ranks that still save. The trap
# keeps this shell alive through the signal that its child gets as well.
_RANK = """trap : TERM
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR
{lines}
"$@"
code=$?
[ $code -eq 143 ] && exit 0
exit $code"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m repro.workflow.launch", description=__doc__)
    parser.add_argument("--site", type=Path, required=True, help="the cluster's file")
    parser.add_argument("--train", action="store_true", help="the command trains a segment: see above")
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args(arguments)
    try:
        site, job = Site.load(options.site), SlurmJob.own()
        if options.train:
            return train(site, job, options.command)
        return Ranks(site, job, options.command, per_node=1, num_nodes=1).wait()
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def train(site: Site, job: SlurmJob, command: list[str]) -> int:
    """One try at a segment; returns the exit code, or does not return when the job is queued again."""
    tail = argparse.ArgumentParser(prog="--train", add_help=False)
    tail.add_argument("run_yaml", type=Path)
    tail.add_argument("--state", type=Path, required=True)
    frozen = tail.parse_known_args(command[3:])[0]
    files = SegmentFiles.of(frozen.run_yaml, read_mapping(frozen.run_yaml), frozen.state)
    tries = Tries(files, job=job.number, invocation=job.invocation)
    if not tries.held:
        tries.tell(f"{tries.holder} trains this segment already; queued again behind it")
        return _queue_again(tries, job, STOPPED)
    if refused := tries.begin(limit=site.tries_without_progress):
        tries.tell(f"given up: {refused}")
        return 1
    step = files.newest_step()
    tries.tell(f"on {job.nodes}: {f'goes on from step {step}' if step else 'starts'}")

    outside = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: outside.set())
    ranks = Ranks(site, job, command, per_node=max(1, job.gpus_per_node), num_nodes=job.num_nodes)
    warned = ranks.watch(site.warn_seconds, outside)
    code = ranks.wait()
    if code == 0 and files.is_complete and not files.published.exists():
        # Another job of this segment started meanwhile, and Snakemake cleared the outputs for it: publish once more.
        code = Ranks(site, job, command, per_node=max(1, job.gpus_per_node), num_nodes=job.num_nodes).wait()
    if code == 0 and files.is_complete:
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
        _wait_for_the_end(tries)
        return _queue_again(tries, job, STOPPED)
    broken = ranks.last_error() or f"a rank ended with exit code {code}"
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
    return _queue_again(tries, job, code or STOPPED)


def _queue_again(tries: Tries, job: SlurmJob, code: int) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    refusal = job.queue_again()
    if refusal is None:
        _wait_for_the_end(tries)
        refusal = "Slurm took the order and did not act on it"
    tries.tell(f"could not be queued again ({refusal}); left to Snakemake's retries")
    return code


def _wait_for_the_end(tries: Tries) -> None:
    """Until Slurm ends this job: nothing trains any more, so the segment is free for the next one.

    A shell that ended before us is the job's end too: not every cluster ends what is left of a job.
    """
    tries.release()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and os.getppid() == _SHELL:
        time.sleep(0.5)
    if os.getppid() != _SHELL:
        sys.exit(STOPPED)


class Ranks:
    """The command's processes on all nodes: one srun, its output passed on line by line."""

    def __init__(
        self, site: Site, job: SlurmJob, command: list[str], *, per_node: int, num_nodes: int
    ) -> None:
        self._job = job
        self._lines: deque[str] = deque(maxlen=50)
        folder = Path.cwd()
        cpus = max(1, job.cpus_per_node // per_node)
        flags = [
            f"--nodes={num_nodes}",
            f"--ntasks={num_nodes * per_node}",
            f"--ntasks-per-node={per_node}",
            f"--cpus-per-task={cpus}",
            *([f"--gres=gpu:{job.gpus_per_node}"] if job.gpus_per_node else []),
            "--kill-on-bad-exit=1",
            *site.srun_flags(folder),
        ]
        lines = [f"export MASTER_PORT={free_port(int(job.number))}", *site.shell_lines()]
        rank = ["sh", "-c", _RANK.format(lines="\n".join(lines)), "rank", *command]
        self._process = subprocess.Popen(
            ["srun", *flags, *site.inside(rank, folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={name: value for name, value in os.environ.items() if name != "SLURM_CPU_BIND"},
        )
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    def watch(self, warn_seconds: float, outside: threading.Event) -> threading.Event:
        """Tells the ranks to stop `warn_seconds` before the job's end; the returned event says that it was done."""
        warned = threading.Event()

        def watch() -> None:
            end = self._job.end
            while self._process.poll() is None and not outside.is_set() and end is not None:
                if time.time() >= end - warn_seconds:
                    end = SlurmJob.ask(self._job.number).end  # an operator may have moved it
                    if end is not None and time.time() >= end - warn_seconds:
                        warned.set()
                        self._job.signal_ranks()
                        return
                time.sleep(0.5)

        threading.Thread(target=watch, daemon=True).start()
        return warned

    def wait(self) -> int:
        """Exit code of srun, once all output has been passed on."""
        code = self._process.wait()
        self._reader.join(timeout=10)
        return code

    def last_error(self) -> str | None:
        """The last line that says what went wrong, without srun's own."""
        wrong = [line for line in self._lines if "rror:" in line and not line.startswith("srun:")]
        return wrong[-1] if wrong else None

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            show(line)
            if line.strip():
                self._lines.append(line.strip())


def free_port(number: int) -> int:
    """The first free port of this node from one that follows from the job's number."""
    for offset in range(_NUM_PORTS):
        port = _FIRST_PORT + (number * 7 + offset) % _NUM_PORTS
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port from {_FIRST_PORT} to {_FIRST_PORT + _NUM_PORTS - 1}")


if __name__ == "__main__":
    sys.exit(main())
