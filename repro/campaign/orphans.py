"""Processes that a killed driver left running: asked to save themselves, so that a new driver can go on with them.

A trainer holds the lock of its segment; a second one of the same segment would be refused. Which processes these are
says the status file of the driver before. Does not: touch a process that is not of that campaign.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from repro.campaign.folder import read_status


def stop_orphans(out: Path, *, seconds: float) -> list[int]:
    """Ask processes that the status in `out` calls running to stop, wait `seconds`, kill the rest; their numbers."""
    left = [
        state["pid"]
        for state in read_status(out).get("tasks", {}).values()
        if state["state"] == "running" and _is_ours(state["pid"], str(out))
    ]
    until = time.time() + seconds
    for pid in left:
        print(f"process {pid} of a driver that was killed: asked to stop", flush=True)
        _send(pid, signal.SIGTERM)
    while any(_is_ours(pid, str(out)) for pid in left) and time.time() < until:
        time.sleep(0.1)
    for pid in left:
        if _is_ours(pid, str(out)):
            _send(pid, signal.SIGKILL)
    return left


def _is_ours(pid: int, out: str) -> bool:
    """Whether the process lives and works for this campaign: numbers are given out anew."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return any(word == out or word.startswith(f"{out}/") for word in words)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
