"""A driver in a session of its own: started so that it outlives the connection that began it, watched from outside.

    start   `python -m repro.campaign run ...` as a process of its own; its words go to OUT/driver.log
    wait    follows OUT/status.json for some minutes, then says how far each task is

Does not: read configs or frozen runs (the driver's process does), train, or need torch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from repro.campaign.folder import is_at_work, last_line, log_of, read_status


def start(chosen: argparse.Namespace) -> int:
    """The same arguments as `run`, in a process that outlives this command; returns when it is at work or refused.

    Exit status 0 or 2.
    """
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.deadline is None and chosen.minutes is not None:
        chosen.deadline = time.time() + 60 * chosen.minutes
    command = [
        sys.executable,
        "-m",
        "repro.campaign",
        *_options(chosen, "campaign", "frozen", "configs", "recorded"),
    ]
    command += ["run", *chosen.names]
    command += _options(chosen, "data", "out", "deadline", "gpus", "per_gpu", "device", "threads")
    command += ["--keep-states"] if chosen.keep_states else []
    with (chosen.out / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    while True:
        ended = process.poll() is not None  # asked before the status is read: it may end between the two
        status = read_status(chosen.out)
        if status.get("pid") == process.pid:
            break
        if ended:
            print(last_line(chosen.out / "driver.log"), file=sys.stderr)
            return 2
        time.sleep(0.1)
    print(f"started as process {process.pid}; log {chosen.out / 'driver.log'}")
    for line in status["notes"]:
        print(line)
    return 0


def _options(chosen: argparse.Namespace, *keys: str) -> list[str]:
    """Those that have a value, as words of a command."""
    given = {key: getattr(chosen, key) for key in keys if getattr(chosen, key) is not None}
    return [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def wait(chosen: argparse.Namespace) -> int:
    """Prints a line a task and a summary once the campaign has ended, or `chosen.minutes` have passed.

    Exit status 0 when all is done, else 3. Raises ValueError where no campaign was started.
    """
    until = time.time() + 60 * chosen.minutes
    content = read_status(chosen.out)
    while content and not content["finished"] and time.time() < until and is_at_work(chosen.out):
        time.sleep(1.0)
        content = read_status(chosen.out)
    if not content:
        raise ValueError(f"{chosen.out}: no campaign was started there")
    if not content["finished"] and not is_at_work(chosen.out):
        print("the driver was killed: start it again, it goes on with what was saved", file=sys.stderr)
    left = max(0.0, content["deadline"] - time.time())
    for name, state in content["tasks"].items():
        if state["state"] == "running":
            words = last_line(log_of(chosen.out, name))
        else:
            rate, loss = state.get("tokens_per_second"), state.get("validation_loss")
            words = state.get("reason") or (f"{rate:,.0f} tokens/s, validation loss {loss}" if rate else "")
        print(f"{name:34} {state['state']:8} {words}")
    summary = {key: content[key] for key in ("finished", "counts", "rates")}
    print(json.dumps({**summary, "minutes_left": round(left / 60, 1)}))
    return 0 if content["finished"] and set(content["counts"]) == {"done"} else 3
