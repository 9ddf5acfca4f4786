"""Tries of one segment: which ones got on, when to give up, and a history that a human reads.

A segment is trained by a chain of jobs. Each try notes the step it starts from; a later one sees from the newest
checkpoint whether that try got on. Only tries without progress count, and only those of one Snakemake invocation: who
starts the workflow again after mending the cause begins at nought. The rule's own log is deleted before each try, so
the history lies beside it: one line an event. Not here: Slurm (repro.workflow.slurm_job), training.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STEP = "step_"  # folder names of the trainers' checkpoints


@dataclass(frozen=True)
class SegmentFiles:
    """Where one segment's things lie."""

    name: str  # <run>.<segment>
    published: Path  # done.json beside run.yaml: there once the segment is complete
    state: Path
    history: Path

    @classmethod
    def of(cls, frozen: Path, content: dict[str, Any], state_root: Path) -> SegmentFiles:
        name = f"{content['run']}.{content['segment']}"
        return cls(
            name=name,
            published=frozen.parent / "done.json",
            state=state_root / str(content["run_hash"]),
            history=state_root.parent / "logs" / "train" / f"{name}.history",
        )

    @property
    def is_complete(self) -> bool:
        """Whether the trainer has said so; the published copy comes and goes with Snakemake's jobs."""
        return (self.state / "done.json").exists()

    def newest_step(self) -> int:
        """Step of the newest checkpoint; 0 when there is none."""
        found = [path.name.removeprefix(_STEP) for path in self.state.glob(f"{_STEP}*")]
        return max((int(number) for number in found if number.isdigit()), default=0)


def show(text: str) -> None:
    """Prints; a log that is gone (its tee was ended with the job) ends nothing else."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process


class Tries:
    """Counts tries without progress in `<state>/tries.json`; `held` is False when another job is at it.

    Raises ValueError when the file system has no locks.
    """

    def __init__(self, files: SegmentFiles, *, job: str, invocation: str) -> None:
        self.files, self.job, self.invocation = files, job, invocation
        files.state.mkdir(parents=True, exist_ok=True)
        files.history.parent.mkdir(parents=True, exist_ok=True)
        self._path = files.state / "tries.json"
        self._lock = open(files.state / "job", "a+", encoding="utf-8")  # noqa: SIM115 - held until exit
        try:
            # Freed by the kernel when this process ends, however it ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            self.held, self.holder = False, self._lock.read().strip() or "another job"
            return
        except OSError as error:
            raise ValueError(
                f"{files.state}: its file system cannot lock files ({error.strerror}), so two jobs could train one "
                "segment; put the results on one that can (Lustre: mounted with flock)"
            ) from None
        self.held, self.holder = True, f"job {job} on {socket.gethostname()}"
        with suppress(OSError):
            self._lock.truncate(0)
            self._lock.write(self.holder)
            self._lock.flush()

    def begin(self, *, limit: int) -> str | None:
        """Notes a new try; returns why there should be none, when `limit` tries in a row got nowhere."""
        before, step = self._read(), self.files.newest_step()
        count, reason = int(before.get("without_progress", 0)), str(before.get("reason", ""))
        if before.get("open"):  # its job ended without a word: the node died, or the job was killed
            lost = f"job {before['job']} ended without a word (node lost or killed)"
            got_on = step > int(before["start_step"])
            count, reason = (0, "") if got_on else (count + 1, lost)
            self.tell(f"{lost}; {'goes on' if step else 'starts again'} from step {step}")
        if before.get("invocation") != self.invocation:
            count, reason = 0, ""
        self._write(open=count < limit, start_step=step, without_progress=count, reason=reason)
        if count >= limit:
            return f"no progress in {count} tries, at step {step}: {reason}"
        return None

    def end(self, reason: str, *, counts: bool = True) -> tuple[bool, int]:
        """Closes the try. Returns (got on, tries in a row that got nowhere); a stop from outside doesn't count."""
        now, step = self._read(), self.files.newest_step()
        got_on = step > int(now.get("start_step", 0))
        count = 0 if got_on else int(now.get("without_progress", 0)) + int(counts)
        self._write(open=False, start_step=step, without_progress=count, reason=reason)
        return got_on, count

    def release(self) -> None:
        """Lets another job have the segment."""
        self._lock.close()

    def tell(self, message: str) -> None:
        """One line into the history and the job's own log."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.files.name}: job {self.job}: {message}\n"
        with suppress(OSError), open(self.files.history, "a", encoding="utf-8") as file:
            file.write(line)
        show(line)

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def _write(self, **fields: Any) -> None:
        content = {
            "invocation": self.invocation,
            "job": self.job,
            **fields,
            "reason": fields["reason"][:1000],
        }
        temporary = self._path.with_name(".tries.json.writing")
        text = json.dumps(content).ljust(2000)
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self._path)
        except (
            OSError
        ):  # a full disk must not end the job that waits for it to be emptied: write over what is there
            with suppress(OSError), open(self._path, "r+", encoding="utf-8") as file:
                file.write(text)
