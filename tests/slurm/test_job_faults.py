"""What befalls one training job on a real Slurm: it goes on by itself, to the bits of an undisturbed run."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

import pytest

pytestmark = pytest.mark.slurm


def same(found: list[dict], expected: list[dict]) -> str:
    """Empty when two metrics are equal, else where they differ first."""
    for one, other in zip(found, expected, strict=False):
        if one != other:
            return f"first difference: {one} v {other}"
    return "" if len(found) == len(expected) else f"{len(found)} v {len(expected)} records"


def under_way(project, wait_for, run: str, *, step: int = 20) -> None:
    wait_for(lambda: project.step(run) >= step, f"{run} to reach step {step}")


def finished(project, wait_for, run: str, job: str) -> None:
    def ended() -> bool:
        state = project.cluster.jobs().get(job, "")
        assert state not in ("FAILED", "TIMEOUT", "CANCELLED"), project.history(run) + project.log(job)
        return project.is_done(run) and state == "COMPLETED"

    wait_for(ended, f"{run} to be complete", seconds=300)


def test_one_job_on_one_node(project, wait_for, undisturbed):
    project.freeze("plain")
    job = project.launch("plain")
    finished(project, wait_for, "plain", job)
    assert not same(project.metrics("plain"), undisturbed), same(project.metrics("plain"), undisturbed)
    assert "starts\n" in project.history("plain")
    assert "complete\n" in project.history("plain")


def test_ranks_on_two_nodes_give_the_losses_of_one_process(project, wait_for, undisturbed):
    project.freeze("wide")
    job = project.launch("wide", "--nodes=2", "--ntasks=2")
    wait_for(lambda: len(project.ranks("wide")) == 2, "two ranks")
    finished(project, wait_for, "wide", job)
    assert "on node[1-2]" in project.history("wide")
    assert not same(project.metrics("wide"), undisturbed), same(project.metrics("wide"), undisturbed)


def test_two_jobs_share_a_node_without_meeting(project, wait_for, undisturbed):
    runs = ("left", "right")
    for run in runs:
        project.freeze(run, seed=11 if run == "left" else 12)
    jobs = {run: project.launch(run, "--nodelist=node1,node2", "--nodes=2", "--ntasks=2") for run in runs}
    for run, job in jobs.items():
        finished(project, wait_for, run, job)
        assert project.history(run).count("queued again") == 0, project.history(run)
    assert not same(project.metrics("left"), undisturbed), same(project.metrics("left"), undisturbed)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_killed_rank(project, wait_for, undisturbed, nodes):
    project.freeze("killed")
    job = project.launch("killed", f"--nodes={nodes}", f"--ntasks={nodes}")
    under_way(project, wait_for, "killed")
    os.kill(project.ranks("killed")[-1], signal.SIGKILL)
    finished(project, wait_for, "killed", job)
    assert "saved at step" in project.history("killed")
    assert "queued again" in project.history("killed")
    assert not same(project.metrics("killed"), undisturbed), same(project.metrics("killed"), undisturbed)


def test_preemption_with_a_grace_time(project, wait_for, undisturbed):
    project.freeze("preempted")
    job = project.launch("preempted", "--partition=spare")
    under_way(project, wait_for, "preempted")
    urgent = ("--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null")
    project.cluster.submit("#!/bin/sh\nsleep 2\n", *urgent)
    finished(project, wait_for, "preempted", job)
    assert "told to stop by Slurm" in project.history("preempted")
    assert not same(project.metrics("preempted"), undisturbed), same(
        project.metrics("preempted"), undisturbed
    )


def test_a_node_set_down_and_back(project, wait_for, undisturbed):
    project.freeze("moved")
    job = project.launch("moved")
    under_way(project, wait_for, "moved")
    node = project.cluster.job(job)["NodeList"]
    project.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test", check=True)
    wait_for(lambda: project.cluster.job(job).get("Restarts") == "1", "the job to be queued again")
    finished(project, wait_for, "moved", job)
    project.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert f"on {node}:" in project.history("moved")
    assert "goes on from step" in project.history("moved")
    assert not same(project.metrics("moved"), undisturbed), same(project.metrics("moved"), undisturbed)


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(project, wait_for, undisturbed, damage):
    project.freeze("damaged")
    job = project.launch("damaged")
    under_way(project, wait_for, "damaged", step=40)
    os.kill(project.ranks("damaged")[0], signal.SIGKILL)
    wait_for(lambda: "queued again" in project.history("damaged"), "the job to be queued again")
    newest = max(project.state("damaged").glob("step_*")) / "tensors.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content if damage == "flipped" else content[: len(content) // 2])
    finished(project, wait_for, "damaged", job)
    assert "damaged checkpoint left out" in project.log(job)
    assert not same(project.metrics("damaged"), undisturbed), same(project.metrics("damaged"), undisturbed)


def test_a_full_disk_while_saving(project, wait_for, undisturbed):
    project.freeze("full")
    state = project.results / "state"
    state.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(state)], check=False)
    if mount.returncode:
        pytest.skip("no file system of a stated size can be mounted here")
    try:
        job = project.launch("full")
        under_way(project, wait_for, "full")
        with open(state / "filler", "wb", buffering=0) as filler, suppress(OSError):
            while filler.write(b"0" * 4096):
                pass
        wait_for(lambda: "queued again" in project.history("full"), "the disk to be full")
        (state / "filler").unlink()
        finished(project, wait_for, "full", job)
        assert "No space left on device" in project.history("full"), project.history("full")
        assert not same(project.metrics("full"), undisturbed), same(project.metrics("full"), undisturbed)
    finally:
        project.cluster.run("scancel", job)
        wait_for(lambda: not project.ranks("full"), "the ranks to be gone")
        subprocess.run(["umount", "--lazy", str(state)], check=True)


def test_no_progress_in_two_tries_fails_with_the_reason(project, wait_for):
    project.site(tries_without_progress=2)
    frozen = project.freeze("stuck")
    text = frozen.read_text()
    frozen.write_text(text.replace("hidden_size: 32", "hidden_size: 33"))
    job = project.launch("stuck")
    wait_for(lambda: project.cluster.jobs().get(job) == "FAILED", "the job to be given up", seconds=300)
    history = project.history("stuck")
    assert "given up: no progress in 2 tries, at step 0: error: " in history, history
    assert history.count("queued again") == 1, history
    # The next job of the same invocation doesn't begin anew, the one of another does.
    name = project.cluster.job(job)["JobName"]
    again = project.launch("stuck", f"--job-name={name}")
    wait_for(lambda: project.cluster.jobs().get(again) == "FAILED", "the second job to be refused")
    assert "Mamba" not in project.log(again), "a refused job starts no ranks"
    frozen.write_text(text)
    mended = project.launch("stuck", "--job-name=other")
    finished(project, wait_for, "stuck", mended)


def test_a_second_job_of_a_segment_waits_behind_the_first(project, wait_for, undisturbed):
    project.freeze("twice")
    first = project.launch("twice")
    under_way(project, wait_for, "twice")
    second = project.launch("twice")
    finished(project, wait_for, "twice", first)
    finished(project, wait_for, "twice", second)
    assert f"job {second}: job {first} on" in project.history("twice")
    assert "trains this segment already" in project.history("twice")
    assert not same(project.metrics("twice"), undisturbed), same(project.metrics("twice"), undisturbed)
