"""``python -m repro.workflow.submit sbatch ...``: sbatch that finds its job again and waits for the controller.

Found again: when Snakemake was killed, its jobs go on, and a new Snakemake submits them all once more. A job of the
same rule and wildcards in the same folder, still queued or running, and younger than every file that the new command
names, is the same job: it is renamed to the new invocation, and its number is the answer instead of a second job's.

Waiting: only a failure in which nobody answered is tried again, since nothing was submitted then. A timeout after
sending may have been a submission, so it is not. Output, errors and exit code are sbatch's.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

_MINUTES, _PAUSE_SECONDS = 30.0, 10.0
_NOTHING_HAPPENED = (
    "unable to contact slurm controller",
    "connection refused",
    "failed to connect to",
    "munge",
)
_NO_COMMAND = 127  # as a shell says it


def main(command: list[str] | None = None) -> int:
    """The exit code of the command; with one line 127 where it is none or not installed, and 130 when stopped."""
    command = sys.argv[1:] if command is None else command
    script = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    if not command:
        sys.stderr.write(
            "python -m repro.workflow.submit: say the command that submits a job, e.g. sbatch ...\n"
        )
        return _NO_COMMAND
    try:
        return _submit(command, script)
    except FileNotFoundError as error:
        sys.stderr.write(f"python -m repro.workflow.submit: {error.filename}: no such command here\n")
        return _NO_COMMAND
    except KeyboardInterrupt:
        sys.stderr.write("python -m repro.workflow.submit: stopped\n")
        return 130


def _submit(command: list[str], script: str) -> int:
    deadline = time.monotonic() + 60 * _MINUTES
    while True:
        if number := adopt(command, script):
            print(number)
            return 0
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
        message = done.stderr.lower()
        away = done.returncode != 0 and any(sign in message for sign in _NOTHING_HAPPENED)
        if not away or time.monotonic() > deadline:
            sys.stdout.write(done.stdout)
            sys.stderr.write(done.stderr)
            return done.returncode
        time.sleep(_PAUSE_SECONDS)


def adopt(command: list[str], script: str = "") -> str | None:
    """Number of a job that does this already, renamed to the new invocation; None when there is none."""
    name, comment, folder = (_value(command, option) for option in ("--job-name", "--comment", "-D"))
    if not (name and comment and folder):
        return None
    question = [
        "squeue",
        "--noheader",
        "--states=PD,R,CF,S",
        "--user",
        str(os.getuid()),
        "--format=%i|%V|%k|%Z",
    ]
    answer = subprocess.run(question, capture_output=True, text=True, check=False)
    changed = newest_file([*command, script], Path(folder))
    for line in answer.stdout.splitlines() if answer.returncode == 0 else ():
        number, submitted, *same = line.split("|")
        if same != [comment, folder] or datetime.fromisoformat(submitted).timestamp() <= changed:
            continue
        rename = ["scontrol", "update", f"JobId={number}", f"JobName={name}"]
        if subprocess.run(rename, capture_output=True, check=False).returncode == 0:
            return number
    return None


def newest_file(texts: list[str], folder: Path) -> float:
    """Time of the last change among the files that a command names: an older job had other inputs."""
    times = [0.0]
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        for word in words:
            path = folder / word
            if len(word) < 1000 and path.is_file():
                times.append(path.stat().st_mtime)
    return max(times)


def _value(command: list[str], option: str) -> str | None:
    return command[command.index(option) + 1] if option in command[:-1] else None


if __name__ == "__main__":
    sys.exit(main())
