"""Several processes: the same numbers as one, a common stop, a common end when one dies.

The processes run on the CPU and talk through gloo. Gradients are added in the order of the micro batches whatever the
number of processes, and amaxes, stochastic rounding and signs belong to micro batches, so nothing here needs a
tolerance: every comparison is of bits.
"""

import random
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
from processes import (
    ONE_SEQUENCE,
    command,
    end,
    metrics,
    schedule_of,
    start,
    start_rank,
    wait_for_listener,
    wait_for_training,
)
from small_segment import freeze

from repro.portable import checkpoint
from repro.portable.frozen import load_frozen
from repro.portable.parallel import Ranks, launched_as
from repro.portable.step import Stepper
from repro.portable.trainer import Trainer
from repro.workflow.ranks import free_port


@pytest.fixture(scope="module")
def alone(tmp_path_factory, data_dir):
    """Metrics of one process, per recipe, with four micro batches a step."""
    root = tmp_path_factory.mktemp("alone")
    torch.set_num_threads(1)
    found = {}
    for recipe in ("bf16", "nvfp4"):
        schedule = schedule_of(root / "schedule", **ONE_SEQUENCE)
        path = freeze(root / f"run_{recipe}", recipe=recipe, schedule=schedule)
        trainer = Trainer(load_frozen(path), data_dir=data_dir, state_root=root / "state")
        assert trainer.run() == "completed"
        trainer.close()
        found[recipe] = metrics(path)
    return found


def test_two_processes_give_the_bits_of_one(tmp_path, data_dir, alone):
    path = freeze(tmp_path / "run_nvfp4", schedule=schedule_of(tmp_path / "s", **ONE_SEQUENCE))
    for code, said in end(start(path, data_dir, tmp_path / "state", size=2)):
        assert code == 0, said
    for one, two in zip(alone["nvfp4"], metrics(path), strict=True):
        assert one == two


def test_a_run_goes_on_with_another_number_of_processes(tmp_path, data_dir, alone):
    path = freeze(tmp_path / "run_nvfp4", schedule=schedule_of(tmp_path / "s", **ONE_SEQUENCE))
    state = tmp_path / "state" / load_frozen(path).run_hash
    processes = start(path, data_dir, tmp_path / "state", size=4)
    wait_for_training(state)
    processes[2].send_signal(signal.SIGTERM)
    ended = end(processes)
    assert [code for code, _ in ended] == [143] * 4, f"one process was asked, all stop and say so: {ended}"
    assert "saved; run again to go on" in ended[0][1]
    assert checkpoint.steps(state), "stopped, but nothing saved"
    assert not (path.parent / "done.json").exists()
    for code, said in end(start(path, data_dir, tmp_path / "state", size=1)):
        assert code == 0, said
        assert "resumed at step" in said
    assert metrics(path) == alone["nvfp4"]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_others_soon_and_the_run_goes_on(tmp_path, data_dir, alone, victim):
    path = freeze(tmp_path / "run_bf16", recipe="bf16", schedule=schedule_of(tmp_path / "s", **ONE_SEQUENCE))
    processes = start(path, data_dir, tmp_path / "state", size=2)
    wait_for_training(tmp_path / "state" / load_frozen(path).run_hash)
    processes[victim].kill()
    began = time.monotonic()
    ended = end(processes, within=20)
    assert time.monotonic() - began < 20
    code, said = ended[1 - victim]
    assert code == 1, said
    assert "goes on from the last checkpoint" in said
    assert "Traceback" not in said
    if victim == 1:
        for code, said in end(start(path, data_dir, tmp_path / "state", size=2)):
            assert code == 0, said
        assert metrics(path) == alone["bf16"]


def test_an_error_in_process_0_reaches_all(tmp_path, data_dir):
    path = freeze(tmp_path / "run_bf16", recipe="bf16")
    holder = checkpoint.StateLock(tmp_path / "state" / load_frozen(path).run_hash)
    ended = end(start(path, data_dir, tmp_path / "state", size=2), within=60)
    holder.release()
    assert [code for code, _ in ended] == [1, 1], ended
    assert "already being trained by process" in ended[0][1]
    assert "ended early" in ended[1][1] or "lost the others" in ended[1][1]


def test_torchrun_starts_it(tmp_path, data_dir, alone):
    path = freeze(tmp_path / "run_bf16", recipe="bf16", schedule=schedule_of(tmp_path / "s", **ONE_SEQUENCE))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, *command(path, data_dir, tmp_path / "state")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert metrics(path) == alone["bf16"]
    assert done.stderr.count("step 20/20") == 1, "process 0 alone reports progress"


def test_processes_that_cannot_share_a_step_are_refused(tmp_path, data_dir):
    segment = load_frozen(freeze(tmp_path / "run"))
    model = Trainer(segment, data_dir=data_dir, state_root=tmp_path / "state").model
    with pytest.raises(ValueError, match="3 processes cannot share the 2 micro batches of a step"):
        Stepper(model, None, None, segment.schedule, Ranks(0, 3))


LAUNCHED = {
    "WORLD_SIZE": "2",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


def test_a_variable_that_the_launcher_forgot_is_named():
    with pytest.raises(ValueError, match="WORLD_SIZE is 2, but LOCAL_RANK, MASTER_PORT is not set"):
        Ranks.join("cpu", environment={"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"WORLD_SIZE": "two"},
            "WORLD_SIZE is 'two', but must be a whole number from 1 on; torchrun or srun",
        ),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0', but must be"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is '', but must be"),
        ({"RANK": "5"}, "RANK is 5, but must be below WORLD_SIZE, which is 2"),
        ({"RANK": "2"}, "RANK is 2, but must be below WORLD_SIZE, which is 2"),
        ({"RANK": "-1"}, "RANK is '-1', but must be a whole number from 0 on"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK is 'x', but must be"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is '65536', but must be a whole number from 1 to 65535"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http', but must be"),
    ],
)
def test_a_variable_that_nobody_could_be_met_with_is_refused_at_once(changed, told):
    with pytest.raises(ValueError, match=f"^{told}"):
        Ranks.join("cpu", environment={**LAUNCHED, **changed})


def test_the_launchers_variables_are_read():
    assert launched_as({**LAUNCHED, "RANK": "1"}) == (1, 2)
    assert launched_as({}) == launched_as({"WORLD_SIZE": "1", "RANK": "0"}) == (0, 1)


@pytest.mark.parametrize(
    ("number", "rank", "code"), [(signal.SIGTERM, 0, 143), (signal.SIGTERM, 1, 143), (signal.SIGINT, 0, 130)]
)
def test_a_process_that_waits_for_others_ends_when_it_is_told_to(tmp_path, data_dir, number, rank, code):
    words = command(freeze(tmp_path / "run"), data_dir, tmp_path / "state")
    port = free_port(random.randrange(10**6))
    with socket.socket() as silent:  # in the place of rank 0, where rank 1 looks for it
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if rank:
            silent.bind(("127.0.0.1", port))
            silent.listen()
            silent.settimeout(60)
        process = start_rank(words, rank, 2, port)
        if rank:
            silent.accept()
        else:
            wait_for_listener(port)
        process.send_signal(number)
        ((found, said),) = end([process], within=5)
    assert found == code, said
    assert "nothing to save" in said
    assert not (tmp_path / "state").exists()
