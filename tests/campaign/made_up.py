"""A campaign on a made-up machine: real processes that sleep and write what a trainer leaves; not a test itself."""

from __future__ import annotations

import sys
from pathlib import Path

from repro.campaign.driver import Campaign
from repro.campaign.machine import Machine
from repro.campaign.rates import Rates
from repro.campaign.tasks import Task, tasks_of

# What stands for a trainer: sleeps, then writes what a trainer leaves.
TRAINER = """
import json, sys, time
from pathlib import Path
out, name, run_hash, seconds, code = Path(sys.argv[1]), *sys.argv[2:]
time.sleep(float(seconds))
if int(code):
    print("no luck")
    sys.exit(int(code))
run, segment = name.split("/")
done = {"run": run, "segment": int(segment), "run_hash": run_hash, "status": "completed", "final": {},
        "provenance": {"tokens_per_second": 1000.0}}
line = {"kind": "train", "step": 1, "tokens": 512, "loss": 2.0}
for folder in (out / "runs" / name, out / "state" / run_hash):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "done.json").write_text(json.dumps(done))
(out / "runs" / name / "metrics.jsonl").write_text(json.dumps(line) + "\\n")
"""


def rates(start_seconds: float = 0.0) -> Rates:
    speeds = {f"{f} {k}": 1e6 for f in ("12b", "1p2b") for k in ("bf16", "nvfp4", "fp8_block")}
    return Rates(speeds, start_seconds=start_seconds, evaluate_seconds=1, measure_seconds=1)


def campaign(
    frozen: Path, out: Path, runs: list[str], *, fails: str = "", seconds: float = 0.0, **more
) -> Campaign:
    def command(task: Task) -> list[str]:
        code = "1" if task.name == fails else "0"
        return [sys.executable, "-c", TRAINER, str(out), task.name, task.run_hash, str(seconds), code]

    machine = Machine(device="cpu", per_gpu=2, threads=1)
    return Campaign(tasks_of(frozen, runs), out, frozen, machine, more.pop("rates", rates()), command, **more)
