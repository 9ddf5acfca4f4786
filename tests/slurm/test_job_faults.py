"""What befalls one training job on a real Slurm: it goes on by itself, to the bits of an undisturbed run."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

import pytest
from slurm_cluster import wait_for
from slurm_project import early

pytestmark = pytest.mark.slurm


@pytest.mark.slow
def test_one_job_on_one_node(project, undisturbed):
    project.freeze("plain")
    project.finished("plain", project.launch("plain"))
    project.unharmed("plain", undisturbed, "on node1: starts$", "complete$")


def test_ranks_on_two_nodes_give_the_losses_of_one_process(project, undisturbed):
    project.freeze("wide")
    job = project.launch("wide", "--nodes=2", "--ntasks=2")
    project.go_on(project.hold("wide", ranks=2))
    project.finished("wide", job)
    project.unharmed("wide", undisturbed, r"on node\[1-2\]: starts$")


@pytest.mark.slow
def test_two_jobs_share_their_nodes_without_meeting(project, undisturbed):
    for run, seed in (("left", 11), ("right", 12)):
        project.freeze(run, seed=seed)
    options = ("--nodelist=node1,node2", "--nodes=2", "--ntasks=2")
    jobs = {run: project.launch(run, *options) for run in ("left", "right")}
    held = [project.hold(run, ranks=2) for run in jobs]  # both have started before one ends
    for ranks in held:
        project.go_on(ranks)
    for run, job in jobs.items():
        project.finished(run, job)
        assert "queued again" not in project.history(run), project.history(run)
    project.unharmed("left", undisturbed)


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_rank(project, undisturbed, nodes):
    project.freeze("killed")
    job = project.launch("killed", f"--nodes={nodes}", f"--ntasks={nodes}")
    held = project.hold("killed", ranks=nodes)
    os.kill(held[-1], signal.SIGKILL)
    project.go_on(held[:-1])
    project.finished("killed", job)
    why = {1: "a rank was killed by signal 9", 2: "error: .*"}[nodes]
    project.unharmed("killed", undisturbed, rf"{why}; saved at step \d+; queued again", "goes on from step")


@pytest.mark.slow
def test_a_rank_that_dies_when_all_is_written_costs_no_new_job(project):
    frozen = project.freeze("ended")
    files = (project.state("ended") / "done.json", frozen.parent / "done.json")
    script = [*(f"echo {{}} > {file}" for file in files), "exit 134"]
    (project.folder / "trainer.sh").write_text("\n".join(script))
    command = ["sh", "trainer.sh", "trains", str(frozen), "--state", "results/tiny/state"]
    job = project.submit(["--train"], command)
    project.finished("ended", job)
    history = project.history("ended")
    assert "a rank was killed by signal 6 when all was trained and written" in history, history
    assert history.endswith(": complete\n")
    assert "queued again" not in history, history


@pytest.mark.slow
def test_the_time_limit(project, undisturbed):
    """With the workflow around it: test_workflow_faults."""
    project.site(**early(15))
    project.freeze("long")
    job = project.launch("long")
    project.meet_the_time_limit("long")
    project.finished("long", job)
    project.unharmed(
        "long", undisturbed, r"time limit near; saved at step \d+; queued again", "goes on from step"
    )


def resumable(project) -> list[str]:
    """A command that keeps what it has done, as the evaluation of many checkpoints: its second start is the last."""
    script = "echo x >> done\necho kept: x\n[ $(wc -l < done) -ge 2 ] || exec sleep 1000\n"
    (project.folder / "measure.sh").write_text(script)
    return ["sh", "measure.sh"]


def has_started_twice(project, job: str) -> None:
    wait_for(lambda: project.cluster.jobs().get(job) == "COMPLETED", "the job's end", seconds=300)
    assert (project.folder / "done").read_text() == "x\nx\n"


def test_a_job_that_keeps_what_it_has_goes_on_behind_its_time_limit(project):
    project.site(**early(3))
    job = project.submit(["--keeps", "kept:"], resumable(project))
    has_started_twice(project, job)
    assert "time limit near; queued again to go on\n" in project.log(job)


def test_a_job_that_kept_nothing_up_to_its_time_limit_fails_with_the_reason(project):
    project.site(**early(3))
    job = project.submit(["--keeps", "kept:"], ["sleep", "1000"])
    wait_for(lambda: project.cluster.jobs().get(job) == "FAILED", "the job to be given up", seconds=300)
    assert "error: given up: nothing was kept up to the time limit" in project.log(job)


@pytest.mark.slow
def test_a_job_that_trains_nothing_is_preempted_and_starts_again(project):
    job = project.submit([], resumable(project), "--partition=spare")
    wait_for((project.folder / "done").exists, "the job's start")
    preempt(project)
    has_started_twice(project, job)


def preempt(project) -> None:
    """Submits a job that takes all nodes, and waits until it has them."""
    urgent = ("--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null")
    other = project.cluster.submit("#!/bin/sh\ntrue\n", *urgent)
    wait_for(lambda: project.cluster.jobs().get(other) in ("RUNNING", "COMPLETED"), "the job that preempts")


@pytest.mark.slow
def test_preemption_with_a_grace_time(project, undisturbed):
    project.freeze("preempted")
    job = project.launch("preempted", "--partition=spare")
    held = project.hold("preempted")
    preempt(project)
    project.go_on(held)
    project.finished("preempted", job)
    told = r"told to stop by Slurm \(scancel, preemption or drain\); saved at step \d+"
    project.unharmed("preempted", undisturbed, told, "goes on from step")


@pytest.mark.slow
def test_a_node_set_down_and_back(project, undisturbed):
    project.freeze("moved")
    job = project.launch("moved")
    held = project.hold("moved")
    node = project.cluster.job(job)["NodeList"]
    project.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test", check=True)
    wait_for(lambda: project.cluster.job(job).get("Restarts") == "1", "the job to be queued again")
    project.go_on(held)
    project.finished("moved", job)
    project.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    project.unharmed("moved", undisturbed, f"on {node}: starts$", "goes on from step")


@pytest.mark.parametrize("damage", [pytest.param("truncated", marks=pytest.mark.slow), "flipped"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(project, undisturbed, damage):
    project.freeze("damaged")
    job = project.launch("damaged")
    held = project.hold("damaged", step=40)
    newest = max(project.state("damaged").glob("step_*")) / "tensors.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content if damage == "flipped" else content[: len(content) // 2])
    os.kill(held[0], signal.SIGKILL)
    project.finished("damaged", job)
    project.unharmed("damaged", undisturbed, f"damaged checkpoint left out: .*{newest.parent.name}")
    step = int(newest.parent.name.removeprefix("step_"))
    assert f"resumed at step {step - 20}\n" in project.log(job)


def test_a_full_disk_while_saving(project, undisturbed):
    project.freeze("full")
    state = project.results / "state"
    state.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(state)], check=False)
    if mount.returncode:
        pytest.skip("no file system of a stated size can be mounted here")
    try:
        job = project.launch("full")
        held = project.hold("full")
        with open(state / "filler", "wb", buffering=0) as filler, suppress(OSError):
            while filler.write(b"0" * 4096):
                pass
        project.go_on(held)
        wait_for(lambda: "queued again" in project.history("full"), "the disk to be full", seconds=300)
        (state / "filler").unlink()
        project.finished("full", job)
        project.unharmed("full", undisturbed, "No space left on device.*; queued again", "goes on from step")
    finally:
        project.cluster.run("scancel", job)
        wait_for(lambda: not project.ranks("full"), "the ranks to be gone")
        subprocess.run(["umount", "--lazy", str(state)], check=True)


@pytest.mark.slow
def test_no_progress_in_two_tries_fails_with_the_reason(project, undisturbed):
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
    project.finished("stuck", project.launch("stuck", "--job-name=other"))
    project.unharmed("stuck", undisturbed)


def test_a_second_job_of_a_segment_waits_behind_the_first(project, undisturbed):
    project.freeze("twice")
    first = project.launch("twice")
    held = project.hold("twice")
    second = project.launch("twice")
    wait_for(
        lambda: "trains this segment already" in project.history("twice"), "the second job to see the first"
    )
    assert project.ranks("twice") == held
    project.go_on(held)
    project.finished("twice", first)
    project.finished("twice", second)
    project.unharmed(
        "twice", undisturbed, f"job {first} on .* trains this segment already; queued again behind it"
    )
