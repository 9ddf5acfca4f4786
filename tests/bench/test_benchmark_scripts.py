"""What the scripts in benchmarks/ refuse: in one line, with exit code 2, before anything is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import any_model_step
import fp8_layer
import layer_clocks
import pairs_tiles
import quantize_peers
import ssd_tiles
import train_step
import train_step_megatron

ROOT = Path(__file__).resolve().parents[2]
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many GPUs there are: none, until it is called. No launcher started the process."""

    def say(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)

    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    say(0)
    return say


def peers(words: list[str]) -> int:
    """quantize_peers.py reads the command line itself; `refused` has set it."""
    assert sys.argv[1:] == words
    return quantize_peers.main()


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a script says of wrong options."""

    def call(parse: Callable[[list[str]], Any], *words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["script", *words])
        with pytest.raises(SystemExit) as ended:
            parse(list(words))
        assert ended.value.code == 2
        printed = capsys.readouterr()
        assert not printed.out
        assert printed.err.count("\n") == 1
        return printed.err

    return call


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--micro 0 --batch -4", "argument --micro: '0': a whole number from 1 on"),
        ("--batch -4", "argument --batch: '-4': a whole number from 1 on"),
        (
            "--batch 3 --micro 2",
            "--batch 3 is no multiple of --micro 2: 1 of its sequences would be counted and",
        ),
        ("--steps 0", "argument --steps: '0': a whole number from 1 on"),
        ("--warmup -1", "argument --warmup: '-1': a whole number from 0 on"),
        ("--seconds 0", "argument --seconds: '0': seconds, more than 0 and finite"),
        ("--runs-per-gpu 0", "argument --runs-per-gpu: '0': a whole number from 1 on"),
        ("--runs-per-gpu 2 1 -1", "argument --runs-per-gpu: '-1': a whole number from 1 on"),
        ("--profile", "--profile shows where a GPU's time goes, and there is none here"),
        ("--models 9b", "argument --models: invalid choice: '9b'"),
    ],
)
def test_a_step_is_timed_of_numbers_that_make_one(words: str, told: str, refused) -> None:
    assert told in refused(train_step.parse, *words.split())


def test_the_launchers_variables_are_looked_at_first(refused, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    assert "WORLD_SIZE is 'two', but must be" in refused(train_step.parse)
    for name, value in zip(LAUNCHED, ("1", "2", "1", "localhost", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    said = refused(train_step.parse, "--runs-per-gpu", "2")
    assert "--runs-per-gpu starts the runs itself: not with WORLD_SIZE 2" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--device foo", "--device 'foo': cpu, cuda or cuda:N"),
        ("--device cuda", "no CUDA GPU"),
        ("--device cpu --rows nothing", "no row matches 'nothing'"),
    ],
)
def test_peers_are_timed_on_a_device_that_is_here(words: str, told: str, refused) -> None:
    assert told in refused(peers, *words.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "no CUDA GPU here, and the kernels of the FP8 baseline are measured on one"),
        ("--device foo", "--device 'foo': cpu, cuda or cuda:N"),
        ("--shapes 3x4", "argument --shapes: '3x4': tokens x input x output features"),
        ("--shapes 128x128x128,128x0x128", "argument --shapes: '128x0x128': tokens x input"),
    ],
)
def test_the_fp8_layer_needs_a_gpu_and_shapes(words: str, told: str, refused) -> None:
    assert told in refused(fp8_layer.prepare, *words.split())


def test_the_fp8_layer_on_a_gpu(refused, gpus) -> None:
    gpus(1)
    assert "--device 'cpu': the kernels of the FP8 baseline run on a GPU" in refused(
        fp8_layer.prepare, "--device", "cpu"
    )
    assert "device 'cuda:7': 1 CUDA GPU here" in refused(fp8_layer.prepare, "--device", "cuda:7")
    options, machine = fp8_layer.prepare(["--shapes", "128x256x384"])
    assert (options.shapes, machine.device) == ([(128, 256, 384)], torch.device("cuda:0"))
    options, _ = fp8_layer.prepare([])
    assert options.shapes == list(fp8_layer.GPU_SHAPES)


def test_tiles_need_a_gpu_and_the_package_whose_kernels_they_are(refused, gpus, monkeypatch) -> None:
    assert "no CUDA GPU here, and tiles of a kernel are measured on one" in refused(pairs_tiles.parse)
    assert "argument --workers: '0'" in refused(pairs_tiles.parse, "--workers", "0")
    found: list[Any] = [None]
    monkeypatch.setattr(ssd_tiles.importlib.util, "find_spec", lambda name: found[0])
    assert "needs mamba_ssm, whose kernels it times" in refused(ssd_tiles.parse)
    found[0] = SimpleNamespace()
    assert "no CUDA GPU here, and tiles of a kernel are measured on one" in refused(ssd_tiles.parse)
    gpus(1)
    assert ssd_tiles.parse(["--batch", "2"]).batch == 2
    assert "argument --batch: '0'" in refused(ssd_tiles.parse, "--batch", "0")


def test_megatrons_step_needs_its_packages_a_gpu_and_a_launcher(refused, gpus, monkeypatch) -> None:
    def told(*words: str) -> str:
        return refused(train_step_megatron.prepare, "--layout", "h200x8", *words)

    assert "--batch 100 is no multiple of --micro 16" in told("--batch", "100")
    assert "argument --micro: '0'" in told("--micro", "16", "0")
    assert "no layout 'nope'" in refused(train_step_megatron.prepare, "--layout", "nope")
    assert "the cluster backend cannot run here" in told()
    monkeypatch.setattr(train_step_megatron.stack, "check_packages", lambda model: None)
    assert "no CUDA GPU here, and megatron-core's steps are measured on one" in told()
    gpus(1)
    assert "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set; start it by torchrun" in told()
    for name, value in zip(LAUNCHED, ("0", "2", "0", "localhost", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    assert "WORLD_SIZE is 2, but batches here are those of one process" in told()
    monkeypatch.setenv("WORLD_SIZE", "1")
    options, job = train_step_megatron.prepare(["--layout", "h200x8", "--batch", "64", "--micro", "32"])
    assert job.segment.schedule["batch_sequences"] == options.batch == 64


@pytest.mark.parametrize(
    ("parse", "words", "option"),
    [
        (train_step.parse, (), "--out"),
        (fp8_layer.prepare, (), "--out"),
        (pairs_tiles.parse, (), "--out"),
        (ssd_tiles.parse, (), "--out"),
        (layer_clocks.parse, (), "--out"),
        (any_model_step.parse, (), "--out"),
        (train_step_megatron.prepare, ("--layout", "h200x8"), "--out"),
        (peers, ("--device", "cpu"), "--json"),
    ],
    ids=lambda value: getattr(value, "__module__", None),
)
def test_a_file_that_cannot_be_written_is_told_first(
    parse, words, option, refused, gpus, monkeypatch, tmp_path: Path
) -> None:
    gpus(1)
    monkeypatch.setattr(ssd_tiles.importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(layer_clocks.shutil, "which", lambda name: name)
    monkeypatch.setattr(train_step_megatron.stack, "check_packages", lambda model: None)
    (tmp_path / "file").write_text("")
    for name, value in zip(LAUNCHED, ("0", "1", "0", "localhost", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    assert "rows.json: cannot be written" in refused(
        parse, *words, option, str(tmp_path / "file" / "rows.json")
    )


def test_a_missing_folder_is_made_before_anything_is_measured(tmp_path: Path) -> None:
    options = train_step.parse(["--out", str(tmp_path / "new" / "rows.json")])
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert not list((tmp_path / "new").iterdir())
    train_step.write(options.out, [{"model": "8b"}], torch.device("cpu"), None)
    assert json.loads((tmp_path / "new" / "rows.json").read_text())["cases"] == [{"model": "8b"}]


def test_steps_that_are_timed_are_those_that_are_counted(monkeypatch, capsys, tmp_path: Path) -> None:
    """Of two micro batches of one sequence; the model itself is of no matter here."""
    counted: list[tuple[int, int]] = []

    def time_case(case: Any, *_others: Any) -> dict[str, Any]:
        counted.append((case.schedule["batch_sequences"], case.schedule["micro_batch_sequences"]))
        raise ValueError("far enough")

    monkeypatch.setattr(train_step, "time_case", time_case)
    monkeypatch.setattr(sys, "argv", ["train_step.py", "--batch", "2", "--micro", "1", "--models", "8b"])
    assert train_step.main() == 1
    assert counted == [(2, 1)]
    assert capsys.readouterr().err == "train_step.py: far enough\n"


def test_a_run_that_starts_no_case_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["train_step.py", "--seconds", "1e-9"])
    assert train_step.main() == 1
    assert capsys.readouterr().err == "train_step.py: no case could be started within --seconds 1e-09\n"


def test_several_processes_end_with_their_own_code() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "benchmarks/train_step.py", "--seconds", "1e-9"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert done.returncode == 1
    assert "train_step.py: no case could be started within --seconds 1e-09" in done.stderr
    assert "exitcode  : 1 " in done.stderr


def test_the_command_itself_ends_with_code_2() -> None:
    command = [sys.executable, "benchmarks/train_step.py", "--micro", "0", "--batch", "-4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "train_step.py: argument --micro: '0': a whole number from 1 on\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "no CUDA GPU here, and clocks are measured on one"),
        ("--seconds -1", "argument --seconds: '-1': seconds, more than 0"),
        ("--shapes 3x4", "argument --shapes: invalid choice: '3x4' (choose from"),
    ],
)
def test_clocks_are_read_of_a_layer_of_the_benchmark(words: str, told: str, refused) -> None:
    assert told in refused(layer_clocks.parse, *words.split())
