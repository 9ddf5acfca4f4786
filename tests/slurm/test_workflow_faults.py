"""What befalls Snakemake, its jobs and the controller: every run is trained once, to the same numbers."""

from __future__ import annotations

import os
import shutil
import signal
import time

import pytest
from conftest import SITE

pytestmark = pytest.mark.slurm


def differing(found: list[dict], expected: list[dict]) -> str:
    for one, other in zip(found, expected, strict=False):
        if one != other:
            return f"first difference: {one} v {other}"
    return "" if len(found) == len(expected) else f"{len(found)} v {len(expected)} records"


def ends(project, wait_for, process, *, code: int = 0, seconds: float = 400) -> None:
    wait_for(lambda: process.poll() is not None, "Snakemake to end", seconds=seconds)
    assert process.returncode == code, project.snakemake_log()[-6000:]


def under_way(project, wait_for, run: str, *, step: int = 20) -> None:
    wait_for(lambda: project.step(run) >= step, f"{run} to reach step {step}")


def active(project) -> dict[str, str]:
    return project.cluster.jobs("pending,running,completing")


def test_a_chain_of_jobs_then_a_failed_evaluation_that_trains_nothing_again(project, wait_for):
    frozen = project.freeze("chain", num_steps=1500)
    began = time.monotonic()
    undisturbed = project.train_alone("chain")
    seconds = time.monotonic() - began
    shutil.rmtree(project.state("chain"))
    for name in ("done.json", "metrics.jsonl"):
        (frozen.parent / name).unlink()
    # Told to stop when some two thirds of it can be trained, at the speed of this moment.
    project.site(warn_seconds=60 * SITE["time_limit_minutes"] - max(8, round(0.7 * seconds)))
    wanted = "results/tiny/evaluations/chain.csv"
    first = project.snakemake(wanted, "--retries", "0", config="runs=chain")
    ends(project, wait_for, first, code=1)
    history = project.history("chain")
    assert "time limit near; saved at step" in history, history
    assert "goes on from step" in history, history
    assert not differing(project.metrics("chain"), undisturbed), differing(
        project.metrics("chain"), undisturbed
    )
    assert "rule evaluate" in project.snakemake_log()
    assert not (project.folder / wanted).exists()
    before = (frozen.parent / "done.json").stat().st_mtime_ns
    (project.folder / "mended").touch()
    again = project.snakemake(wanted, config="runs=chain")
    ends(project, wait_for, again)
    assert (frozen.parent / "done.json").stat().st_mtime_ns == before, "trained again"
    assert project.history("chain") == history


def test_scancel_is_noticed_and_retried_while_a_second_invocation_is_refused(project, wait_for, undisturbed):
    project.freeze("cancelled")
    process = project.snakemake(config="runs=cancelled")
    under_way(project, wait_for, "cancelled")
    (job,) = active(project)
    project.cluster.run("scancel", job)
    second = project.snakemake(config="runs=cancelled")
    ends(project, wait_for, second, code=1, seconds=60)
    assert "LockException" in project.snakemake_log()
    ends(project, wait_for, process)
    assert "told to stop by Slurm" in project.history("cancelled")
    assert f"job {job}: on" in project.history("cancelled")
    found = project.metrics("cancelled")
    assert not differing(found, undisturbed), differing(found, undisturbed)


@pytest.mark.parametrize("daemon", ["controller", "munge"])
def test_a_daemon_away_while_snakemake_polls_and_submits(project, wait_for, undisturbed, daemon):
    """Longer than all attempts of one round: the plugin as it is would wait for ever."""
    for run in ("early", "late"):
        project.freeze(run, seed=11 if run == "early" else 12)
    cluster = project.cluster
    stop = {"controller": cluster.stop_controller, "munge": cluster.stop_munge}[daemon]
    start = {"controller": cluster.start_controller, "munge": cluster.start_munge}[daemon]
    process = project.snakemake("--slurm-status-attempts", "2", "--jobs", "1", config="runs=early,late")
    wait_for(lambda: any(project.step(run) for run in ("early", "late")), "the first run to train")
    stop()
    try:
        wait_for(
            lambda: any(project.is_done(run) for run in ("early", "late")), "the first run to be complete"
        )
        time.sleep(12)
    finally:
        start()
    ends(project, wait_for, process)
    assert "no job is lost" in project.snakemake_log()
    found = project.metrics("early")
    assert not differing(found, undisturbed), differing(found, undisturbed)
    assert project.is_done("late")


def test_snakemake_killed_with_a_job_running(project, wait_for, undisturbed):
    project.freeze("orphan")
    process = project.snakemake(config="runs=orphan")
    under_way(project, wait_for, "orphan")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (job,) = active(project)
    ends(project, wait_for, project.snakemake("--unlock", config="runs=orphan"))
    ends(project, wait_for, project.snakemake(config="runs=orphan"))
    history = project.history("orphan")
    assert history.count(": on ") == 1, f"trained by more than one job:\n{history}"
    assert f"SLURM jobid {job}" in project.snakemake_log().partition("Unlocked")[2], (
        "the job was not found again"
    )
    assert project.is_done("orphan")
    assert not differing(project.metrics("orphan"), undisturbed), differing(
        project.metrics("orphan"), undisturbed
    )


def test_snakemake_interrupted_cancels_its_jobs_and_goes_on_later(project, wait_for, undisturbed):
    project.freeze("paused")
    process = project.snakemake(config="runs=paused")
    under_way(project, wait_for, "paused")
    process.send_signal(signal.SIGINT)
    ends(project, wait_for, process, code=1)
    wait_for(lambda: not active(project), "the job to be cancelled")
    assert not project.is_done("paused")
    ends(project, wait_for, project.snakemake(config="runs=paused"))
    history = project.history("paused")
    assert "goes on from step" in history, history
    assert not differing(project.metrics("paused"), undisturbed), differing(
        project.metrics("paused"), undisturbed
    )
