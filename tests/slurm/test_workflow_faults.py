"""What befalls Snakemake and its jobs on a real Slurm: the workflow ends with the numbers of an undisturbed one."""

from __future__ import annotations

import os
import signal

import pytest
from slurm_cluster import wait_for
from slurm_project import early

pytestmark = pytest.mark.slurm

SAVED = r"told to stop by Slurm \(scancel, preemption or drain\); saved at step \d+"


def test_a_chain_of_jobs_then_a_failed_evaluation_that_trains_nothing_again(project, undisturbed):
    project.freeze("chain")
    project.site(**early(15))
    wanted = "results/tiny/evaluations/chain.csv"
    first = project.snakemake(wanted, "--retries", "0", config="runs=chain")
    project.meet_the_time_limit("chain")
    project.ends(first, code=1)
    assert "rule evaluate" in project.snakemake_log()
    assert not (project.folder / wanted).exists()
    limit = r"time limit near; saved at step \d+; queued again"
    history = project.unharmed("chain", undisturbed, limit, "goes on from step")
    before = (project.frozen("chain") / "done.json").stat().st_mtime_ns
    (project.folder / "mended").touch()
    project.ends(project.snakemake(wanted, config="runs=chain"))
    assert (project.folder / wanted).exists()
    assert (project.frozen("chain") / "done.json").stat().st_mtime_ns == before, "trained again"
    assert project.history("chain") == history


@pytest.mark.slow
def test_scancel_is_noticed_and_retried_while_a_second_invocation_is_refused(project, undisturbed):
    project.freeze("cancelled")
    process = project.snakemake(config="runs=cancelled")
    held = project.hold("cancelled")
    project.ends(project.snakemake(config="runs=cancelled"), code=1)
    assert "LockException" in project.snakemake_log()
    (job,) = project.active()
    project.cluster.run("scancel", job)
    project.go_on(held)
    project.ends(process)
    history = project.unharmed("cancelled", undisturbed, SAVED, "goes on from step")
    assert f"job {job}: told to stop" in history
    assert history.count("goes on from step") == 1, history


@pytest.mark.slow
@pytest.mark.parametrize("daemon", ["controller", "munge"])
def test_a_daemon_away_while_snakemake_polls_and_submits(project, undisturbed, daemon):
    """Longer than all attempts of one round: the plugin as it is would wait for ever."""
    for run, seed in (("early", 11), ("late", 12)):
        project.freeze(run, seed=seed)
    cluster = project.cluster
    stop = {"controller": cluster.stop_controller, "munge": cluster.stop_munge}[daemon]
    start = {"controller": cluster.start_controller, "munge": cluster.start_munge}[daemon]
    options = ("--slurm-status-attempts", "2", "--jobs", "1")
    process = project.snakemake(*options, config="runs=early,late")
    wait_for(lambda: any(map(project.step, ("early", "late"))), "the first run to train", seconds=300)
    (run,) = filter(project.step, ("early", "late"))
    held = project.hold(run)
    stop()
    try:
        project.go_on(held)
        wait_for(lambda: project.is_done(run), "the first run to be complete", seconds=300)
        wait_for(
            lambda: "no job is lost" in project.snakemake_log(), "a round without an answer", seconds=300
        )
    finally:
        start()
    project.ends(process)
    assert project.is_done("late")
    history = project.unharmed("early", undisturbed)
    assert history.count(": on ") == project.history("late").count(": on ") == 1, "trained by one job each"


@pytest.mark.slow
def test_snakemake_killed_with_a_job_running(project, undisturbed):
    project.freeze("orphan")
    process = project.snakemake(config="runs=orphan")
    held = project.hold("orphan")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (job,) = project.active()
    project.ends(project.snakemake("--unlock", config="runs=orphan"))
    again = project.snakemake(config="runs=orphan")
    found = f"SLURM jobid {job}"
    wait_for(lambda: found in project.snakemake_log().partition("Unlocked")[2], "the job to be found again")
    assert list(project.active()) == [job], "the job was submitted twice"
    project.go_on(held)
    project.ends(again)
    history = project.unharmed("orphan", undisturbed)
    assert history.count(": on ") == 1, f"trained by more than one job:\n{history}"


@pytest.mark.slow
def test_snakemake_killed_and_its_job_over_before_the_next_start(project, undisturbed):
    project.freeze("alone")
    process = project.snakemake(config="runs=alone")
    held = project.hold("alone")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    project.go_on(held)
    wait_for(lambda: not project.active(), "the job to end without Snakemake", seconds=300)
    project.ends(project.snakemake("--unlock", config="runs=alone"))
    project.ends(project.snakemake(config="runs=alone"))
    assert "Nothing to be done" in project.snakemake_log()
    assert project.unharmed("alone", undisturbed).count(": on ") == 1


@pytest.mark.slow
def test_snakemake_interrupted_cancels_its_jobs_and_goes_on_later(project, undisturbed):
    project.freeze("paused")
    process = project.snakemake(config="runs=paused")
    held = project.hold("paused")
    process.send_signal(signal.SIGINT)
    wait_for(
        lambda: "COMPLETING" in project.active().values() or not project.active(), "the job to be cancelled"
    )
    project.go_on(held)
    project.ends(process, code=1)
    wait_for(lambda: not project.active(), "the job to be gone")
    assert not project.is_done("paused")
    project.ends(project.snakemake(config="runs=paused"))
    project.unharmed("paused", undisturbed, SAVED, "goes on from step")
