"""``python -m repro.workflow.submit sbatch ...``: sbatch that waits while the controller is away.

Only a failure in which nobody answered is tried again: nothing was submitted then. A timeout after sending may have
been a submission, so it is not. Output, errors and exit code are sbatch's.
"""

from __future__ import annotations

import subprocess
import sys
import time

_MINUTES, _PAUSE_SECONDS = 30.0, 10.0
_NOTHING_HAPPENED = (
    "unable to contact slurm controller",
    "connection refused",
    "failed to connect to",
    "munge",
)


def main(command: list[str] | None = None) -> int:
    command = sys.argv[1:] if command is None else command
    script = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    deadline = time.monotonic() + 60 * _MINUTES
    while True:
        done = subprocess.run(command, input=script or "", capture_output=True, text=True, check=False)
        message = done.stderr.lower()
        away = done.returncode != 0 and any(sign in message for sign in _NOTHING_HAPPENED)
        if not away or time.monotonic() > deadline:
            sys.stdout.write(done.stdout)
            sys.stderr.write(done.stderr)
            return done.returncode
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
