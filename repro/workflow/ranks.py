"""One command as the ranks of a job: one launcher for 1 to n nodes.

It starts one rank a GPU (one a node without GPUs) through srun with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT from Slurm's own variables; the port is free on the first node and follows from the job's number, so that
jobs which share a node don't meet. Not here: what a job does when its ranks have ended (repro.workflow.launch).
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from repro.workflow.site import Site
from repro.workflow.slurm_job import SlurmJob
from repro.workflow.tries import show

_SIGNAL_SECONDS = 15.0
_FIRST_PORT, _NUM_PORTS = 20000, 10000  # below the ports that kernels give to outgoing connections

# The trap keeps this shell alive through the signal that its child gets as well.
_RANK = """trap : TERM
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR
{lines}
"$@"
code=$?
{end}
exit $code"""
# For ranks that save when told to stop: with this code of the first one srun would end those that still save.
_SAVED = "[ $code -eq 143 ] && exit 0"


class Ranks:
    """The command's processes on all nodes: one srun, its output passed on line by line."""

    def __init__(
        self,
        site: Site,
        job: SlurmJob,
        command: list[str],
        *,
        per_node: int,
        num_nodes: int,
        saves: bool = False,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """saves: the ranks save when they are told to stop, which counts as a good end. note: is told every line."""
        self._job, self._note = job, note
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
        rank = [
            "sh",
            "-c",
            _RANK.format(lines="\n".join(lines), end=_SAVED if saves else ""),
            "rank",
            *command,
        ]
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
                        self._stop()
                        return
                time.sleep(0.5)

        threading.Thread(target=watch, daemon=True).start()
        return warned

    def _stop(self) -> None:
        """Tells the ranks to stop until they have; one that has not started yet misses a signal."""
        while self._process.poll() is None:
            self._job.stop_ranks()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_SIGNAL_SECONDS)

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
                self._note(line.strip())


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
