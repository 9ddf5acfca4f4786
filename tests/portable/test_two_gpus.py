"""One training run on two GPUs, through NCCL: the bits of one GPU, a common end when a process dies.

What test_parallel.py asks of processes on the CPU. Gradients are added in the order of the micro batches, so here too
every comparison is of bits.
"""

import subprocess
import sys
import time

import pytest
import torch
from processes import ONE_SEQUENCE, command, end, metrics, schedule_of, start, wait_for_training
from small_segment import freeze

from repro.portable import checkpoint
from repro.portable.frozen import load_frozen

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
#: A first process compiles for a minute or two; more where others compile beside it.
PATIENCE = 400


def frozen(folder, recipe):
    return freeze(folder / f"run_{recipe}", recipe=recipe, schedule=schedule_of(folder / "s", **ONE_SEQUENCE))


def metrics_of_one_gpu(folder, data_dir, recipe, *options):
    path = frozen(folder / "alone", recipe)
    ended = end(
        start(path, data_dir, folder / "alone" / "state", "--device", "cuda", *options, size=1),
        within=PATIENCE,
    )
    assert [code for code, _ in ended] == [0], ended
    return metrics(path)


@pytest.mark.parametrize(("recipe", "options"), [("bf16", ["--no-compile"]), ("nvfp4", [])])
def test_torchrun_on_two_gpus_gives_the_bits_of_one(tmp_path, data_dir, recipe, options):
    alone = metrics_of_one_gpu(tmp_path, data_dir, recipe, *options)
    path = frozen(tmp_path, recipe)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, *command(path, data_dir, tmp_path / "state", "--device", "cuda", *options)],
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for one, two in zip(alone, metrics(path), strict=True):
        assert one == two


def test_a_killed_process_ends_the_other_soon_and_the_run_goes_on(tmp_path, data_dir):
    options = ("--device", "cuda", "--no-compile")
    path = frozen(tmp_path, "nvfp4")
    state = tmp_path / "state" / load_frozen(path).run_hash
    processes = start(path, data_dir, tmp_path / "state", *options, size=2)
    wait_for_training(state, within=PATIENCE)
    processes[1].kill()
    began = time.monotonic()
    ended = end(processes, within=60)
    assert time.monotonic() - began < 60
    code, said = ended[0]
    assert code == 1, said
    assert "goes on from the last checkpoint" in said
    for code, said in end(start(path, data_dir, tmp_path / "state", *options, size=2), within=PATIENCE):
        assert code == 0, said
    assert checkpoint.steps(state)
    assert metrics(path) == metrics_of_one_gpu(tmp_path, data_dir, "nvfp4", "--no-compile")
