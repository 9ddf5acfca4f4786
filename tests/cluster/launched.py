"""Processes of the cluster backend as a launcher starts them, and waiting for them without waiting for ever.

Without a GPU the same commands run through without_gpu.py.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
import torch

from repro.workflow.ranks import free_port

ON_GPU = torch.cuda.is_available()
_WITHOUT_GPU = Path(__file__).parent / "without_gpu.py"
_ROOT = Path(__file__).parents[2]
#: Seconds for one launch, and for the others of a launch once one of them has failed: they wait for it.
_PATIENCE, _GRACE = 900.0, 60.0


@dataclass(frozen=True)
class Launched:
    """One process of a launch, whose output is kept."""

    #: What it is called when it is waited for in vain.
    name: str
    popen: subprocess.Popen
    output: IO[str]

    def said(self) -> str:
        """What it has written so far, errors included."""
        self.output.seek(0)
        return self.output.read()


def start(*words) -> Launched:
    """One process of a launch of one: python WORDS with the variables that a launcher sets.

    The package is found whether it is installed or not.
    """
    (process,) = launch(*words)
    return process


def launch(*words, size: int = 1) -> list[Launched]:
    """`start` of all processes of a launch on this machine, in order of rank."""
    # Megatron's imports take longer than another program needs to take a port from those of outgoing connections.
    port = str(free_port(random.randrange(10**6)))
    environment = {"WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    if not ON_GPU:
        words, environment["TORCHDYNAMO_DISABLE"] = (_WITHOUT_GPU, *words), "1"
    return [
        process_of(words, f"process {rank} of {size}", RANK=str(rank), LOCAL_RANK=str(rank), **environment)
        for rank in range(size)
    ]


def process_of(words: Sequence, name: str, **environment: str) -> Launched:
    """python WORDS, called `name`."""
    output = tempfile.TemporaryFile("w+")  # a pipe that nobody reads would stop the process  # noqa: SIM115
    popen = subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
    )
    return Launched(name, popen, output)


def finish(process: Launched, seconds: float = _PATIENCE) -> tuple[int, str]:
    """(exit code, what it said)."""
    (end,) = finish_all([process], seconds)
    return end


def finish_all(
    processes: Sequence[Launched], seconds: float = _PATIENCE, grace: float = _GRACE
) -> list[tuple[int, str]]:
    """`finish` of all processes of one launch, in order of rank.

    Fails, saying which process was waited for and what each has said, when one still runs after `seconds`, or `grace`
    seconds after another one has failed. None runs any more then.
    """
    began, failed = time.monotonic(), None
    while None in (codes := [process.popen.poll() for process in processes]):
        now = time.monotonic()
        if failed is None and any(codes):
            failed = now
        if now > began + seconds or (failed is not None and now > failed + grace):
            _give_up(processes, now - began)
        time.sleep(0.02)
    return [(process.popen.returncode, process.said()) for process in processes]


def _give_up(processes: Sequence[Launched], seconds: float) -> None:
    awaited = [process for process in processes if process.popen.poll() is None]
    for process in awaited:
        process.popen.kill()
        process.popen.wait()
    told = [f"waited {seconds:.0f} s for {' and '.join(process.name for process in awaited)}"]
    for process in processes:
        state = "did not end" if process in awaited else f"ended with exit code {process.popen.returncode}"
        told.append(f"{process.name} {state}; it said: {process.said()[-3000:] or 'nothing'}")
    pytest.fail("\n".join(told))


def wait_for(path: Path, process: Launched, seconds: float = _PATIENCE) -> None:
    """Until `path` exists; fails when the process ends before, or makes none of it in `seconds`."""
    began = time.monotonic()
    while not path.exists():
        assert process.popen.poll() is None, (
            f"{process.name} made no {path} and said: {process.said()[-6000:]}"
        )
        if time.monotonic() > began + seconds:
            _give_up([process], time.monotonic() - began)
        time.sleep(0.02)
