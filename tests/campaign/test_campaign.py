"""A campaign on a made-up machine: order, dependencies, time, failures, going on; leases of the proxy tier."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro.campaign.collect import collect, keep
from repro.campaign.driver import Campaign
from repro.campaign.folder import is_at_work
from repro.campaign.forecast import expected_minutes
from repro.campaign.leases import Lease, load_campaign
from repro.campaign.machine import Machine
from repro.campaign.preflight import link_data
from repro.campaign.progress import DONE, LATE
from repro.campaign.rates import Rates
from repro.campaign.tasks import Task, cost_class_of, read_frozen, tasks_of, with_dependants
from repro.experiments import freeze_all, load

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


@pytest.fixture(scope="module")
def frozen(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    freeze_all(load("tiny"), folder)
    return folder / "runs"


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


def test_a_fork_brings_its_parents_segments_and_waits_for_them(frozen):
    tasks = {task.name: task for task in tasks_of(frozen, ["12b_without_sr"])}
    assert list(tasks) == ["12b_nvfp4/0", "12b_without_sr/0"]
    assert tasks["12b_without_sr/0"].waits_for == ("12b_nvfp4/0",)
    assert with_dependants(list(tasks.values()), "12b_nvfp4/0") == set(tasks)


def test_evaluations_wait_for_the_whole_run(frozen):
    tasks = tasks_of(frozen, ["12b_nvfp4"], evaluate=["12b_nvfp4", "12b_fp8"])
    [evaluation] = [task for task in tasks if task.kind == "evaluate"]
    assert evaluation.waits_for == tuple(f"12b_nvfp4/{n}" for n in range(4))


def test_the_cost_class_is_the_family_and_the_format(frozen):
    assert cost_class_of(read_frozen(frozen, "1p2b_bf16")[0]) == "1p2b bf16"
    assert cost_class_of(read_frozen(frozen, "1p2b_weights_same")[0]) == "1p2b nvfp4"


def test_an_unknown_run_is_named(frozen):
    with pytest.raises(ValueError, match="no frozen run '1p2b_bf61'"):
        tasks_of(frozen, ["1p2b_bf61"])


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


def test_a_stopped_segment_needs_the_time_of_what_is_left(frozen, tmp_path):
    tasks = {task.name: task for task in tasks_of(frozen, ["12b_without_sr"])}
    fork = tasks["12b_without_sr/0"]
    driver = campaign(frozen, tmp_path, ["12b_without_sr"])
    whole = driver._seconds(fork)
    for share in (0.5, 0.9):
        folder = tmp_path / "state" / fork.run_hash / f"step_{int(100 * share):08d}"
        folder.mkdir(parents=True)
        (folder / "meta.json").write_text(json.dumps({"tokens": fork.start_tokens + share * fork.tokens}))
    assert fork.start_tokens > 0
    assert driver._seconds(fork) == pytest.approx(0.1 * whole)


def test_measured_rates_replace_the_assumed_ones():
    task = Task("a/0", "train", "a", 0, 10_000, "1p2b bf16", ())
    known = rates()
    known.learn(task, 100.0)
    assert known.seconds(task, per_gpu=2) == pytest.approx(known.safety * 100)
    with pytest.raises(ValueError, match="nothing for '8b mxfp4'"):
        known.rate("8b mxfp4", 1)


def test_an_archive_is_kept_only_as_far_as_it_fits_the_configuration(frozen, tmp_path):
    campaign(frozen, tmp_path / "out", ["1p2b_bf16", "1p2b_last4"]).run(time.time() + 120)
    done = tmp_path / "out" / "runs" / "1p2b_last4" / "0" / "done.json"
    done.write_text(done.read_text().replace('"run_hash": "', '"run_hash": "0'))
    collect(tmp_path / "out", tmp_path / "back", tier="tiny")
    number, refused = keep(tmp_path / "back" / "campaign.json.xz", tmp_path / "recorded", load("tiny"))
    assert number == 1
    assert len(refused) == 1
    assert "1p2b_last4/0" in refused[0]
    assert (tmp_path / "recorded" / "tiny" / "runs" / "1p2b_bf16" / "0.json.xz").is_file()


def test_the_leases_hold_every_run_of_the_proxy_tier_once(tmp_path):
    plan = load("proxy")
    freeze_all(plan, tmp_path)
    file = load_campaign(Path("configs/campaign/proxy.yaml"))
    named = [run for lease in file.leases.values() for run in (*lease.runs, *lease.then)]
    assert sorted(named) == sorted([*plan.runs, *plan.sweep])
    for lease in file.leases.values():
        tasks, priority = lease.tasks(tmp_path / "runs")
        minutes = expected_minutes(tasks, priority, lease.machine(file.machine), file.new_rates())
        assert 0 < minutes <= file.minutes, lease.name


def test_what_a_killed_driver_left_running_is_stopped_before_going_on(frozen, tmp_path):
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)", str(tmp_path)])
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
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


def test_a_killed_run_is_told_in_one_line(frozen, tmp_path):
    driver = campaign(frozen, tmp_path, ["1p2b_bf16", "1p2b_last4"], fails="1p2b_bf16/0")
    train = driver.command
    kill = "import os, signal; print('step 7', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    driver.command = lambda task: [sys.executable, "-c", kill] if task.run == "1p2b_bf16" else train(task)
    assert not driver.run(time.time() + 120)
    assert driver.progress.states["1p2b_bf16/0"]["reason"] == "killed by SIGKILL; its log ends: step 7"
    assert driver.progress.states["1p2b_last4/0"]["state"] == DONE


def test_a_short_fork_does_not_replace_a_measured_rate():
    known = rates()
    known.learn(Task("a/0", "train", "a", 0, 100_000, "12b nvfp4", ()), 1000.0)
    known.learn(Task("b/0", "train", "b", 0, 9_000, "12b nvfp4", ()), 300.0)
    assert known.measured["12b nvfp4"] == 1000.0


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


def test_what_is_recorded_is_not_run_again(frozen, tmp_path):
    campaign(frozen, tmp_path / "out", ["1p2b_bf16"]).run(time.time() + 120)
    collect(tmp_path / "out", tmp_path / "back", tier="tiny")
    keep(tmp_path / "back" / "campaign.json.xz", tmp_path / "recorded", load("tiny"))
    lease = Lease("l", "", ("1p2b_bf16", "1p2b_last4"), measure=("1p2b_bf16",))
    left = lease.without_recorded(frozen, tmp_path / "recorded" / "tiny")
    assert left.runs == ("1p2b_bf16", "1p2b_last4"), (
        "its measurement is missing, and its checkpoints are gone"
    )
    left = Lease("l", "", lease.runs).without_recorded(frozen, tmp_path / "recorded" / "tiny")
    assert left.runs == ("1p2b_last4",)


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
