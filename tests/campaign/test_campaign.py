"""A campaign on a made-up machine: order, dependencies, time, failures, going on."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time

import pytest
from made_up import TRAINER, campaign, rates

from repro.campaign.choice import SAVING_SECONDS
from repro.campaign.folder import is_at_work, lock, log_of, seconds_left
from repro.campaign.machine import Machine
from repro.campaign.preflight import link_data
from repro.campaign.progress import DONE, LATE, STOPPED
from repro.campaign.tasks import Task, tasks_of


def test_everything_is_done_parents_first_and_not_done_twice(frozen, tmp_path):
    runs = ["12b_without_sr", "1p2b_bf16"]
    assert campaign(frozen, tmp_path, runs).run(time.time() + 120)
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["finished"]
    assert status["counts"] == {DONE: 3}
    again = campaign(frozen, tmp_path, runs, fails="1p2b_bf16/0")
    assert again.run(time.time() + 120), "what is done is not started again"


def test_what_waits_for_a_failed_segment_is_blocked_and_the_rest_goes_on(frozen, tmp_path):
    driver = campaign(frozen, tmp_path, ["12b_without_sr", "1p2b_bf16"], fails="12b_nvfp4/0")
    assert not driver.run(time.time() + 120)
    states = {name: state["state"] for name, state in driver.progress.states.items()}
    assert states == {"12b_nvfp4/0": "failed", "12b_without_sr/0": "blocked", "1p2b_bf16/0": "done"}
    assert "no luck" in driver.progress.states["12b_nvfp4/0"]["reason"]


def test_a_segment_that_cannot_end_in_time_is_not_started(frozen, tmp_path):
    driver = campaign(frozen, tmp_path, ["1p2b_bf16"], rates=rates(start_seconds=1000))
    assert not driver.run(time.time() + 60)
    assert driver.progress.states["1p2b_bf16/0"]["state"] == LATE
    assert not (tmp_path / "logs" / "1p2b_bf16.0.log").exists()


@pytest.mark.parametrize(("status", "known"), [("completed", {"1p2b bf16": 1000.0}), ("diverged", {})])
def test_a_run_that_ended_before_tells_its_rate_unless_it_diverged(frozen, tmp_path, status, known):
    campaign(frozen, tmp_path, ["1p2b_bf16"]).run(time.time() + 120)
    [done] = (tmp_path / "state").glob("*/done.json")
    done.write_text(json.dumps(json.loads(done.read_text()) | {"status": status}))
    again = campaign(frozen, tmp_path, ["1p2b_bf16"])
    assert again.run(time.time() + 120)
    assert again.rates.measured == known


@pytest.mark.parametrize(("status", "known"), [("completed", {"1p2b bf16": 1000.0}), ("diverged", {})])
def test_a_run_that_ends_now_tells_its_rate_unless_it_diverged(frozen, tmp_path, status, known):
    """One that diverges while it still compiles would make a later run look too long for the time left."""
    driver = campaign(frozen, tmp_path, ["1p2b_bf16"])
    trained = driver.command
    trainer = TRAINER.replace("completed", status)
    driver.command = lambda task: [sys.executable, "-c", trainer, *trained(task)[3:]]
    assert driver.run(time.time() + 120)
    assert driver.rates.measured == known


@pytest.mark.parametrize("is_asked", [False, True])
def test_checkpoints_stay_until_what_continues_them_is_done_or_where_that_is_asked(
    frozen, tmp_path, is_asked
):
    driver = campaign(frozen, tmp_path, ["12b_without_sr"], keep_states=is_asked)
    parent = tmp_path / "state" / driver.tasks[0].run_hash / "step_00000001"
    train = driver.command
    begin = {
        "12b_nvfp4": f"Path({str(parent)!r}).mkdir(parents=True)",
        "12b_without_sr": f"assert Path({str(parent)!r}).is_dir(), 'nothing to continue'",
    }

    def command(task: Task) -> list[str]:
        return [
            sys.executable,
            "-c",
            f"from pathlib import Path; {begin[task.run]}\n{TRAINER}",
            *train(task)[3:],
        ]

    driver.command = command
    assert driver.run(time.time() + 120), driver.progress.states
    assert parent.exists() is is_asked


def test_a_stopped_segment_needs_the_time_of_what_is_left(frozen, tmp_path):
    tasks = {task.name: task for task in tasks_of(frozen, ["12b_without_sr"])}
    fork = tasks["12b_without_sr/0"]
    driver = campaign(frozen, tmp_path, ["12b_without_sr"])
    whole = driver.choice.seconds(fork)
    for share in (0.5, 0.9):
        folder = tmp_path / "state" / fork.run_hash / f"step_{int(100 * share):08d}"
        folder.mkdir(parents=True)
        (folder / "meta.json").write_text(json.dumps({"tokens": fork.start_tokens + share * fork.tokens}))
    assert fork.start_tokens > 0
    assert driver.choice.seconds(fork) == pytest.approx(0.1 * whole)


def sleeper(word: str) -> subprocess.Popen[bytes]:
    """A process of these words that is at work, so that /proc has its words."""
    code = "import time; print(flush=True); time.sleep(100)"
    process = subprocess.Popen([sys.executable, "-c", code, word], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_what_a_killed_driver_left_running_is_stopped_before_going_on(frozen, tmp_path):
    left, stranger = sleeper(str(tmp_path)), sleeper(f"{tmp_path}2/runs")
    tasks = {name: {"state": "running", "pid": p.pid} for name, p in (("a/0", left), ("b/0", stranger))}
    (tmp_path / "status.json").write_text(json.dumps({"tasks": tasks}))
    try:
        assert campaign(frozen, tmp_path, ["1p2b_bf16"]).run(time.time() + 120)
        assert left.wait(10) < 0
        assert stranger.poll() is None, "a process of somebody else with this number is left alone"
    finally:
        left.kill()
        stranger.kill()


def test_two_campaigns_do_not_work_in_one_folder(frozen, tmp_path):
    assert not is_at_work(tmp_path)
    with (tmp_path / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_at_work(tmp_path)
        with pytest.raises(ValueError, match="another campaign works there"):
            campaign(frozen, tmp_path, ["1p2b_bf16"]).run(time.time() + 120)
    with lock(tmp_path):
        assert is_at_work(tmp_path), "the lock of a driver is one that others see"


def test_running_segments_are_asked_to_stop_while_there_is_time_to_save(frozen, tmp_path):
    driver = campaign(frozen, tmp_path, ["1p2b_bf16"], seconds=100)
    began = time.time()
    assert not driver.run(began + SAVING_SECONDS + 2)
    assert time.time() - began < SAVING_SECONDS
    assert driver.progress.states["1p2b_bf16/0"]["state"] == STOPPED
    assert driver.progress.states["1p2b_bf16/0"]["reason"].startswith("not saved")


def test_a_table_that_is_there_is_not_made_again(frozen, tmp_path):
    driver = campaign(frozen, tmp_path, ["1p2b_bf16"], fails="measure:1p2b_bf16")
    driver.tasks = tasks_of(frozen, ["1p2b_bf16"], measure=["1p2b_bf16"])
    driver.__post_init__()
    (tmp_path / "mechanisms").mkdir()
    (tmp_path / "mechanisms" / "1p2b_bf16.csv").write_text("run\n")
    assert driver.run(time.time() + 120), driver.progress.states


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("a[0] step 40/80 (50 %)  9 tokens/s  120 s left", 120.0),
        ("a[0] step 40/80 (50 %)  9 tokens/s  2 s left of it", None),
        ("saved", None),
    ],
)
def test_the_last_line_of_a_log_tells_what_is_left(line, seconds, tmp_path):
    log = log_of(tmp_path, "a/0")
    log.parent.mkdir()
    log.write_text(f"a[0] step 1/80 (1 %)  9 tokens/s  7 s left\n{line}\n")
    assert seconds_left(log) == seconds


def test_a_killed_run_is_told_in_one_line(frozen, tmp_path):
    driver = campaign(frozen, tmp_path, ["1p2b_bf16", "1p2b_last4"], fails="1p2b_bf16/0")
    train = driver.command
    kill = "import os, signal; print('step 7', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    driver.command = lambda task: [sys.executable, "-c", kill] if task.run == "1p2b_bf16" else train(task)
    assert not driver.run(time.time() + 120)
    assert driver.progress.states["1p2b_bf16/0"]["reason"] == "killed by SIGKILL; its log ends: step 7"
    assert driver.progress.states["1p2b_last4/0"]["state"] == DONE


def test_until_a_step_is_trained_a_gpu_gets_one_run(frozen, tmp_path):
    driver = campaign(frozen, tmp_path, ["1p2b_bf16", "1p2b_last4"])
    driver.machine.device = "cuda"
    driver.__post_init__()
    talk = "import time; time.sleep(1); print('1p2b_bf16[0] step 1/80 (1 %)', flush=True); time.sleep(1)"
    train = driver.command

    def command(task: Task) -> list[str]:
        real = train(task)
        return [sys.executable, "-c", talk + "\n" + TRAINER, *real[3:]]

    driver.command = command
    assert driver.run(time.time() + 120)
    began = [p.stat().st_mtime for p in sorted((tmp_path / "logs").iterdir())]
    assert abs(began[1] - began[0]) > 0.5


def test_the_next_run_starts_while_the_one_before_it_ends(frozen, tmp_path, capsys):
    driver = campaign(frozen, tmp_path, ["1p2b_bf16", "1p2b_last4"], rates=rates(start_seconds=2))
    driver.machine = Machine(device="cuda", per_gpu=1, threads=1)
    driver.__post_init__()
    # Two seconds of a run in which two are left to go, then two that are silent.
    talk = (
        "import time; print('1p2b_bf16[0] step 1/80 (1 %)  9 tokens/s  4 s left', flush=True); time.sleep(2)"
    )
    talk += "; print('1p2b_bf16[0] step 40/80 (50 %)  9 tokens/s  2 s left', flush=True); time.sleep(2)"
    train = driver.command
    heard = []

    def command(task: Task) -> list[str]:
        heard.append("".join(path.read_text() for path in (tmp_path / "logs").iterdir()))
        return [sys.executable, "-c", talk + "\n" + TRAINER, *train(task)[3:]]

    driver.command = command
    assert driver.run(time.time() + 120)
    assert "2 s left" in heard[1], "the second began when the first had two seconds left"
    said = capsys.readouterr().out
    assert said.index("1p2b_last4/0: running") < said.index("1p2b_bf16/0: done")


def test_a_machine_without_the_data_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no complete data"):
        link_data(tmp_path / "out", tmp_path)


def test_what_never_began_says_why(frozen, tmp_path):
    driver = campaign(frozen, tmp_path, ["12b_without_sr"], rates=rates(start_seconds=1000))
    assert not driver.run(time.time() + 60)
    assert driver.progress.states["12b_nvfp4/0"]["state"] == LATE
    assert driver.progress.states["12b_without_sr/0"] == {
        "state": "waiting", "reason": "not begun; 12b_nvfp4/0: no time",
    }  # fmt: skip


def test_a_table_that_there_is_no_time_for_is_said_before_anything_begins(frozen, tmp_path, capsys):
    driver = campaign(frozen, tmp_path, ["1p2b_bf16"])
    driver.tasks = tasks_of(frozen, ["1p2b_bf16"], measure=["1p2b_bf16"])
    driver.rates.measure_seconds = 1000
    driver.__post_init__()
    assert not driver.run(time.time() + 120)
    assert {name: state["state"] for name, state in driver.progress.states.items()} == {
        "1p2b_bf16/0": DONE,
        "measure:1p2b_bf16": LATE,
    }
    [note] = json.loads((tmp_path / "status.json").read_text())["notes"]
    assert note.startswith("NO TIME FOR measure:1p2b_bf16, though the run is trained")
    assert capsys.readouterr().out.startswith(note)
