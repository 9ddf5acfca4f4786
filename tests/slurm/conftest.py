"""A Slurm of four nodes, and projects on it whose training lasts some seconds."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


lab = _load("slurm_test_cluster", Path(__file__).with_name("cluster.py"))
small = _load("small_frozen_runs", ROOT / "tests/portable/conftest.py")

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


class Project:
    """A folder with the profile, prepared data and frozen runs; jobs of it on the test cluster."""

    def __init__(self, folder: Path, cluster: object, data: Path) -> None:
        self.folder, self.cluster = folder, cluster
        self.results = folder / "results/tiny"
        shutil.copytree(ROOT / "slurm", folder / "slurm")
        shutil.copytree(data, self.results / "data", copy_function=os.link)
        self.site()

    def site(self, **changes: object) -> None:
        content = yaml.safe_dump({**SITE, **changes})
        (self.folder / "slurm/site.yaml").write_text(content, encoding="utf-8")

    # frozen runs

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
        path = small.freeze(self.results / f"runs/{run}/0", **content)
        frozen = yaml.safe_load(path.read_text())
        frozen["run"] = run
        path.write_text(yaml.safe_dump(frozen, sort_keys=False))
        return path

    def state(self, run: str) -> Path:
        content = yaml.safe_load((self.results / f"runs/{run}/0/run.yaml").read_text())
        return self.results / "state" / content["run_hash"]

    def step(self, run: str) -> int:
        steps = [int(path.name.removeprefix("step_")) for path in self.state(run).glob("step_*")]
        return max(steps, default=0)

    def history(self, run: str) -> str:
        path = self.results / f"logs/train/{run}.0.history"
        return path.read_text() if path.exists() else ""

    def metrics(self, run: str) -> list[dict]:
        from repro.portable.metrics import comparable

        return comparable((self.results / f"runs/{run}/0/metrics.jsonl").read_text())

    def is_done(self, run: str) -> bool:
        return (self.results / f"runs/{run}/0/done.json").exists()

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
        command = [
            sys.executable,
            "-m",
            "repro.workflow.launch",
            "--site",
            "slurm/site.yaml",
            "--train",
            "--",
        ]
        script = f"#!/bin/sh\n{' '.join([*command, *self.command(run)])}\n"
        own = ("--requeue", "--open-mode=append", f"--output={self.folder}/%j.log", f"--chdir={self.folder}")
        return self.cluster.submit(script, *own, *options)

    def log(self, job: str) -> str:
        path = self.folder / f"{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def ranks(self, run: str) -> list[int]:
        """Process numbers of the training processes of a run."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().decode(errors="replace").split("\0")
                is_trainer = words[1:3] == ["-m", "repro.portable"] and f"runs/{run}/0/run.yaml" in words[3]
                if is_trainer and Path(f"/proc/{path.parent.name}/cwd").resolve() == self.folder:
                    found.append(int(path.parent.name))
        return found

    def snakemake(self, *arguments: str, config: str = "") -> subprocess.Popen:
        """Starts Snakemake with the project's profile, asking Slurm more often than on a real cluster."""
        command = [sys.executable, "-m", "snakemake", "--profile", "slurm", "--nocolor"]
        command += ["--snakefile", str(ROOT / "tests/slurm/Snakefile")]
        command += ["--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "5"]
        command += [*arguments, "--config", f"root={ROOT}", *config.split()]
        log = open(self.folder / "snakemake.log", "a")  # noqa: SIM115 - the process writes on
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            # Tests that were started in the background ignore SIGINT, and would hand that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def snakemake_log(self) -> str:
        return (self.folder / "snakemake.log").read_text()


def pytest_configure(config):
    config.addinivalue_line("markers", "slurm: starts a Slurm on this machine (minutes; alone, not under -n)")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("one cluster a machine: run `pytest tests/slurm` by itself")
    if reason := lab.missing():
        pytest.skip(f"no Slurm to start: {reason}")
    started = lab.Cluster(tmp_path_factory.mktemp("slurm"))
    started.start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture
def project(tmp_path, cluster, prepared):
    started: list[subprocess.Popen] = []
    project = Project(tmp_path, cluster, prepared)
    start = project.snakemake

    def remembering(*arguments: str, **options: str) -> subprocess.Popen:
        started.append(start(*arguments, **options))
        return started[-1]

    project.snakemake = remembering
    yield project
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    cluster.run("scancel", "--user", str(os.getuid()))
    lab.wait_for(lambda: not cluster.jobs("running,completing,pending"), "the jobs to be gone")
    cluster.run("scontrol", "update", f"NodeName=node[1-{cluster.num_nodes}]", "State=RESUME")
    lab.wait_for(cluster.is_idle, "all nodes to be idle")


@pytest.fixture(scope="session")
def undisturbed(cluster, tmp_path_factory, prepared) -> list[dict]:
    """Metrics of the run of Project.freeze, trained in one go by one process without Slurm."""
    reference = Project(tmp_path_factory.mktemp("undisturbed"), None, prepared)
    reference.freeze("calm")
    return reference.train_alone("calm")


@pytest.fixture
def wait_for():
    return lab.wait_for
