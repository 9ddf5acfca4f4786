"""The folder of a campaign at work, as its driver writes it and everybody else reads it.

    OUT/status.json        every task's state, rewritten at each change
    OUT/logs/<task>.log    what each process said
    OUT/lock               held by the driver at work

Not here: results and checkpoints, which lie in OUT as in the workflow's results folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STATUS = "status.json"
#: A progress line of training (repro.portable.progress).
_STEP = re.compile(r" step \d+/\d+ ")
_LEFT = re.compile(r" (\d+) s left$")


@contextlib.contextmanager
def lock(out: Path) -> Iterator[None]:
    """Held inside, and while the process lives; raises ValueError when another driver holds it."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"{out}: another campaign works there; wait for it, or name another --out"
            ) from None
        yield


def is_at_work(out: Path) -> bool:
    """Whether a driver works in `out`; the kernel frees the lock of one that was killed."""
    try:
        with lock(out):
            return False
    except ValueError:
        return True


def read_status(out: Path) -> dict[str, Any]:
    """status.json; empty before the first driver began."""
    path = out / _STATUS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_status(out: Path, content: dict[str, Any]) -> None:
    """Writes it whole: a reader sees the old one or the new one."""
    temporary = out / ".status.writing"
    temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    temporary.replace(out / _STATUS)


def log_of(out: Path, task: str) -> Path:
    """Where a task's process writes what it says."""
    return out / "logs" / (task.replace("/", ".").replace(":", ".") + ".log")


def last_line(path: Path) -> str:
    """The last line of a log that says something."""
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.is_file() else []
    return lines[-1].strip() if lines else "no message"


def has_trained(log: Path) -> bool:
    """Whether the segment of a log has trained a step: what it has compiled lies in the machine's caches then."""
    return _STEP.search(log.read_text(encoding="utf-8", errors="replace")) is not None


def seconds_left(log: Path) -> float | None:
    """What a segment says of its own end in the last line of its log; None where that is no progress line."""
    left = _LEFT.search(last_line(log))
    return None if left is None else float(left[1])
