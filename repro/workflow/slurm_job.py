"""What a job asks its Slurm while it runs: its own shape and end, signals to its ranks, to be queued again.

The plugin's job step removes most SLURM_* variables, so the job asks the controller, patiently: one that is away for
some minutes costs nothing but time. Not here: submitting and polling (the Snakemake plugin does).
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from datetime import datetime

_PAUSE_SECONDS = 5.0


@dataclass(frozen=True)
class SlurmJob:
    """The running job as the controller describes it."""

    number: str
    invocation: str  # the job's name: one for all jobs of a Snakemake invocation
    nodes: str
    num_nodes: int
    cpus_per_node: int
    gpus_per_node: int
    end: float | None  # seconds since the epoch; None without a limit

    @classmethod
    def own(cls) -> SlurmJob:
        """The job that this process runs in. Raises RuntimeError outside of one."""
        number = os.environ.get("SLURM_JOB_ID")
        if not number:
            raise RuntimeError("SLURM_JOB_ID is not set: this command runs inside a Slurm job")
        return cls.ask(number)

    @classmethod
    def ask(cls, number: str) -> SlurmJob:
        """Job `number`; waits while the controller is away."""
        text = patiently(["scontrol", "-o", "show", "job", number], minutes=30.0)
        if text is None:
            raise RuntimeError(f"job {number}: the Slurm controller did not answer for half an hour")
        return cls.parse(text)

    @classmethod
    def parse(cls, text: str) -> SlurmJob:
        """From the line of `scontrol -o show job`."""
        fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
        num_nodes = int(fields["NumNodes"].split("-")[0])
        # gres:gpu:4, gres/gpu:4, gres/gpu:h100:4, by version of Slurm
        gpus = re.search(r"gpu(?::[A-Za-z][\w.]*)?[:=](\d+)", fields.get("TresPerNode", ""))
        end = fields.get("EndTime", "Unknown")
        return cls(
            number=fields["JobId"],
            invocation=fields.get("JobName", ""),
            nodes=fields.get("NodeList", ""),
            num_nodes=num_nodes,
            cpus_per_node=max(1, int(fields["NumCPUs"]) // num_nodes),
            gpus_per_node=int(gpus[1]) if gpus else 0,
            end=datetime.fromisoformat(end).timestamp() if end[:1].isdigit() else None,
        )

    def stop_ranks(self) -> None:
        """Sends SIGTERM to every step's processes, not to the batch script; tried until the job's end."""
        patiently(["scancel", "--signal=TERM", self.number], minutes=10.0)

    def queue_again(self) -> str | None:
        """Puts the job back into the queue, which ends it here; returns Slurm's words when it refuses."""
        refusal: list[str] = []
        done = patiently(["scontrol", "requeue", self.number], minutes=30.0, refusal=refusal)
        return None if done is not None else (refusal[-1] if refusal else "the controller did not answer")


def patiently(command: list[str], *, minutes: float, refusal: list[str] | None = None) -> str | None:
    """Standard output of a Slurm command, tried again while the controller can't be reached; None at last.

    An answer that is a refusal is not asked for again; its text goes into `refusal`.
    """
    deadline = time.monotonic() + 60 * minutes
    while True:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            if done.returncode == 0:
                return done.stdout
            message = " ".join(done.stderr.split())
        except subprocess.TimeoutExpired:
            message = "timed out"
        if refusal is not None:
            refusal.append(message)
        if not is_away(message) or time.monotonic() > deadline:
            return None
        time.sleep(_PAUSE_SECONDS)


def is_away(message: str) -> bool:
    """Whether a Slurm command failed because nobody answered, so that nothing has happened."""
    signs = ("unable to contact slurm controller", "connection refused", "timed out", "munge", "socket")
    return any(sign in message.lower() for sign in signs)
