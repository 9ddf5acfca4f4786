"""Folders whose training jobs run on the test cluster, what can be done to these jobs, and what must hold afterwards.

A fault must hit on every machine, fast or slow: a run is held (SIGSTOP) once it has got on, the fault is done to it,
and then it is let go. Nothing here waits for a fixed time.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import yaml
from slurm_cluster import Cluster, wait_for

from repro.experiments.content import run_hash_of
from repro.portable.metrics import comparable

ROOT = Path(__file__).resolve().parents[2]
NUM_STEPS = 400
SITE = {
    "partition": {"cpu": "cpu", "gpu": "gpu"},
    "gpus_per_node": 8,
    "cpus_per_node": 8,
    "memory_gb_per_node": 16,
    "time_limit_minutes": 5,
    "warn_seconds": 10,
    "environment": {"OMP_NUM_THREADS": 1},
}


def _small_runs() -> ModuleType:
    """tests/portable/small_segment.py: frozen segments of a model whose steps take milliseconds."""
    spec = importlib.util.spec_from_file_location(
        "small_frozen_runs", ROOT / "tests/portable/small_segment.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


small = _small_runs()


class Folder:
    """A working directory with slurm/ and results/tiny/, and its training jobs."""

    def __init__(self, folder: Path, cluster: Cluster | None) -> None:
        self.folder, self.cluster = folder, cluster
        self.results = folder / "results/tiny"
        self.started: list[subprocess.Popen] = []

    def site(self, **changes: object) -> None:
        content = yaml.safe_dump({**SITE, **changes})
        (self.folder / "slurm/site.yaml").write_text(content, encoding="utf-8")

    # questions

    def frozen(self, run: str) -> Path:
        return self.results / f"runs/{run}/0"

    def state(self, run: str) -> Path:
        content = yaml.safe_load((self.frozen(run) / "run.yaml").read_text())
        return self.results / "state" / content["run_hash"]

    def step(self, run: str) -> int:
        """The newest checkpoint's; 0 before the first."""
        if not (self.frozen(run) / "run.yaml").exists():
            return 0
        steps = [int(path.name.removeprefix("step_")) for path in self.state(run).glob("step_*")]
        return max(steps, default=0)

    def history(self, run: str) -> str:
        path = self.results / f"logs/train/{run}.0.history"
        return path.read_text() if path.exists() else ""

    def metrics(self, run: str) -> list[dict]:
        return comparable((self.frozen(run) / "metrics.jsonl").read_text())

    def is_done(self, run: str) -> bool:
        return (self.frozen(run) / "done.json").exists()

    def ranks(self, run: str) -> list[int]:
        """Process numbers of the training processes of a run, in this folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().decode(errors="replace").split("\0")
                is_trainer = words[1:3] == ["-m", "repro.portable"] and f"runs/{run}/0/run.yaml" in words[3]
                if is_trainer and Path(f"/proc/{path.parent.name}/cwd").resolve() == self.folder:
                    found.append(int(path.parent.name))
        return found

    def active(self) -> dict[str, str]:
        """Job id -> state of the jobs that are not over."""
        return self.cluster.jobs("pending,running,completing")

    def snakemake_log(self) -> str:
        return (self.folder / "snakemake.log").read_text()

    # orders

    def start_snakemake(self, *arguments: str, **environment: str) -> subprocess.Popen:
        """Snakemake with the folder's profile, asking Slurm more often than on a real cluster."""
        script = str(ROOT / "tests/slurm/snakemake_often.py")
        command = [sys.executable, script, "--profile", "slurm", "--nocolor"]
        command += ["--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "5", *arguments]
        with open(self.folder / "snakemake.log", "a") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                start_new_session=True,
                # Tests that were started in the background ignore SIGINT, and would hand that on.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        self.started.append(process)
        return process

    def ends(self, process: subprocess.Popen, *, code: int = 0) -> None:
        wait_for(lambda: process.poll() is not None, "Snakemake to end", seconds=900)
        assert process.returncode == code, self.snakemake_log()[-6000:]

    def hold(self, run: str, *, step: int = 20, ranks: int = 1) -> list[int]:
        """Stops the run's processes in their tracks once it has a checkpoint of `step` or later."""
        wait_for(lambda: self._reached(run) >= step, f"{run} to reach step {step}", seconds=300)
        held = self.ranks(run)
        for rank in held:
            os.kill(rank, signal.SIGSTOP)
        assert len(held) == ranks, f"{run} has {len(held)} processes, not {ranks}: {self.history(run)}"
        return held

    def _reached(self, run: str) -> int:
        """The run's step; fails when every Snakemake that was started has ended: nothing would be waited for."""
        ended = self.started and all(process.poll() is not None for process in self.started)
        assert not ended or self.is_done(run) or self.active(), self.snakemake_log()[-6000:]
        return self.step(run)

    def go_on(self, held: list[int]) -> None:
        for rank in held:
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGCONT)

    def meet_the_time_limit(self, run: str, *, step: int = 20) -> None:
        """Lets the run's first jobs be warned of their limit, one of them with something to save; then no more.

        The site must have been told to warn early (`early`): the run is held until the warning comes.
        """

        def warned_while_held() -> bool:
            if self._reached(run) < step or not (held := self.ranks(run)):
                return False
            for rank in held:
                os.kill(rank, signal.SIGSTOP)
            wait_for(lambda: all(map(_is_told_to_stop, held)), "the warning before the limit", seconds=300)
            self.site()
            self.go_on(held)
            return True

        wait_for(warned_while_held, f"{run} to reach step {step} and its limit", seconds=600)

    def close(self) -> None:
        """Ends what was started: Snakemake, jobs, processes that are held."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    # what must hold in the end

    def unharmed(self, run: str, expected: list[dict], *told: str) -> str:
        """The run is complete with these metrics, nothing was trained twice, and each of `told` is one log line.

        Returns the history. Each of `told` is a regular expression for the line after its time stamp.
        """
        history = self.history(run)
        assert self.is_done(run), history
        found = self.metrics(run)
        differing = [pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]]
        assert not differing, f"first difference: {differing[0]}\n{history}"
        assert len(found) == len(expected), f"{len(found)} v {len(expected)} records\n{history}"
        saved = 0
        for line in history.splitlines():
            if began := re.search(r": on \S+ (?:goes on from step (\d+)|starts)", line):
                step = int(began[1] or 0)
                assert step >= saved, f"began before step {saved}, which was saved:\n{history}"
                saved = step
            elif kept := re.search(r"saved at step (\d+)", line):
                saved = int(kept[1])
        assert len(re.findall(r": complete$", history, re.MULTILINE)) >= 1, history
        for line in told:
            assert re.search(rf"^\S+ \S+ \S+: job \d+: .*{line}", history, re.MULTILINE), (
                f"{line}?\n{history}"
            )
        return history


def early(seconds: float) -> dict[str, int]:
    """The site's answer to `Folder.meet_the_time_limit`: jobs are warned `seconds` after their start."""
    limit = 60 * int(SITE["time_limit_minutes"])
    return {"warn_seconds": max(1, round(limit - seconds)), "tries_without_progress": 100}


def _is_told_to_stop(process: int) -> bool:
    """Whether SIGTERM waits for a held process; True when that is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return True
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in pending)


class Project(Folder):
    """A folder with the profile, prepared data and frozen runs of some seconds."""

    def __init__(self, folder: Path, cluster: Cluster | None, data: Path) -> None:
        super().__init__(folder, cluster)
        shutil.copytree(ROOT / "slurm", folder / "slurm")
        shutil.copytree(data, self.results / "data", copy_function=os.link)
        self.site()

    def freeze(self, run: str, *, num_steps: int = NUM_STEPS, **changes: object) -> Path:
        """A run of `num_steps` steps under the paper's full method; a checkpoint every 20 steps."""
        tokens = small.STEP_TOKENS
        schedule = {
            "horizon_tokens": num_steps * tokens,
            "start_tokens": 0,
            "end_tokens": num_steps * tokens,
            "sequence_length_tokens": small.SEQUENCE,
            "batch_sequences": small.BATCH,
            "micro_batch_sequences": 2,
            "warmup_tokens": 10 * tokens,
            "decay_start_tokens": num_steps * tokens // 2,
            "learning_rate_max": 3e-3,
            "learning_rate_min": 3e-5,
            "decay_shape": "linear",
        }
        phases = [{"until_tokens": num_steps * tokens, "blend": {"code": 0.5, "prose": 0.5}}]
        content = {
            "schedule": schedule,
            "data": {"name": "test", "seed": 7, "phases": phases},
            "validation": {"sequences": 8, "every_tokens": 100 * tokens},
            "checkpoints": {"every_tokens": 20 * tokens, "keep_last": 2, "keep_tokens": []},
            **changes,
        }
        path = small.freeze(self.frozen(run), **content)
        frozen = yaml.safe_load(path.read_text())
        frozen["run"] = run
        frozen["run_hash"] = run_hash_of(frozen)
        path.write_text(yaml.safe_dump(frozen, sort_keys=False))
        return path

    def train_alone(self, run: str) -> list[dict]:
        """Trains a frozen run in one go by one process without Slurm; its metrics."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(self.command(run), cwd=self.folder, env=environment, check=True, capture_output=True)
        return self.metrics(run)

    # jobs

    def command(self, run: str) -> list[str]:
        frozen = f"results/tiny/runs/{run}/0/run.yaml"
        options = ["--data", "results/tiny/data", "--state", "results/tiny/state", "--threads", "1"]
        return [sys.executable, "-m", "repro.portable", frozen, *options]

    def launch(self, run: str, *options: str) -> str:
        """Submits the launcher as the training rule's job does; returns the job's number."""
        return self.submit(["--train"], self.command(run), *options)

    def submit(self, how: list[str], command: list[str], *options: str) -> str:
        """Submits `command` under the launcher."""
        launcher = [sys.executable, "-m", "repro.workflow.launch", "--site", "slurm/site.yaml", *how, "--"]
        script = f"#!/bin/sh\n{' '.join([*launcher, *command])}\n"
        own = ("--requeue", "--open-mode=append", f"--output={self.folder}/%j.log", f"--chdir={self.folder}")
        return self.cluster.submit(script, *own, *options)

    def finished(self, run: str, job: str) -> None:
        """Waits until the run is complete and its job over; fails when the job does."""

        def ended() -> bool:
            state = self.cluster.jobs().get(job, "")
            assert state not in ("FAILED", "TIMEOUT", "CANCELLED"), self.history(run) + self.log(job)
            return self.is_done(run) and state == "COMPLETED"

        wait_for(ended, f"{run} to be complete", seconds=600)

    def log(self, job: str) -> str:
        path = self.folder / f"{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def snakemake(self, *arguments: str, config: str = "") -> subprocess.Popen:
        """Snakemake over tests/slurm/Snakefile: the project's training rule and an evaluation."""
        snakefile = ["--snakefile", str(ROOT / "tests/slurm/Snakefile")]
        return self.start_snakemake(*snakefile, *arguments, "--config", f"root={ROOT}", *config.split())
