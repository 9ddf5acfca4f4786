"""Processes of one training run, started as a launcher starts them, on the CPU or on GPUs."""

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

from small_segment import freeze

from repro.portable.frozen import load_frozen
from repro.portable.metrics import comparable
from repro.workflow.ranks import free_port

ONE_SEQUENCE = {"micro_batch_sequences": 1}


def command(path: Path, data_dir: Path, state: Path, *options: str) -> list[str]:
    """options: of `python -m repro.portable`; the CPU where they name no device."""
    folders = ["--data", str(data_dir), "--state", str(state)]
    return ["-m", "repro.portable", str(path), *folders, "--device", "cpu", *options]


def start(path: Path, data_dir: Path, state: Path, *options: str, size: int) -> list[subprocess.Popen]:
    """One process a rank, as srun would start them."""
    port = free_port(
        random.randrange(10**6)
    )  # none that an outgoing connection takes before it is listened on
    words = command(path, data_dir, state, *options)
    return [start_rank(words, rank, size, port) for rank in range(size)]


def start_rank(words: list[str], rank: int, size: int, port: int) -> subprocess.Popen:
    """Rank `rank` alone of `size`; the others are to be met on `port`."""
    launcher = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, text=True, env={**os.environ, **launcher}
    )


def end(processes: list[subprocess.Popen], *, within: float = 120) -> list[tuple[int, str]]:
    """(exit code, what was said) of every process; one that goes on for too long is a failure."""
    found = []
    deadline = time.monotonic() + within
    try:
        for process in processes:
            _, said = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            found.append((process.returncode, said))
    finally:
        for process in processes:
            process.kill()
    return found


def wait_for_training(state: Path, *, within: float = 60) -> None:
    """Until the first line of metrics is on its way: process 0 opens the file when training starts."""
    deadline = time.monotonic() + within
    while not (state / "metrics.jsonl").exists():
        assert time.monotonic() < deadline, "training never started"
        time.sleep(0.005)


def wait_for_listener(port: int, *, within: float = 60) -> None:
    """Until process 0 waits for the others on `port`."""
    deadline = time.monotonic() + within
    while True:
        with socket.socket() as caller:
            if caller.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, "nobody listens"
        time.sleep(0.05)


def metrics(path: Path) -> list[dict]:
    return comparable((path.parent / "metrics.jsonl").read_text())


def schedule_of(folder: Path, **changes) -> dict:
    return {**load_frozen(freeze(folder)).schedule, **changes}
