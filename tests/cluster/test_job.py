"""One process up to megatron-core's entry point: refusals, environment, arguments, the command line."""

import importlib
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from small import STEP_TOKENS, freeze, portable

from repro.cluster import job, stack
from repro.cluster.__main__ import main
from repro.cluster.job import Job
from repro.cluster.layout import load_layout
from repro.cluster.recorder import Recorder
from repro.cluster.state import find_start

LAUNCH = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


@pytest.fixture
def launched(monkeypatch):
    for name, value in LAUNCH.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stack, "check_packages", lambda model: None)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return portable.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def without_te(monkeypatch):
    """As before Transformer Engine's import, whatever ran in this process before."""
    monkeypatch.delitem(sys.modules, "transformer_engine", raising=False)


@pytest.mark.usefixtures("without_te")
def test_the_environment_is_set_and_inherited_switches_are_not(segment, layouts, monkeypatch, tmp_path):
    monkeypatch.setenv("NVTE_BACKWARD_OVERRIDE", "dequantized")
    monkeypatch.setenv("NVTE_NVFP4_DISABLE_RHT", "0")
    monkeypatch.setenv("NVTE_USE_FAST_MATH", "1")
    monkeypatch.setenv(
        "TRITON_CACHE_MANAGER", "megatron.core.ssm.triton_cache_manager:ParallelFileCacheManager"
    )
    Job(segment("12b_without_rht"), layouts["gb200"], tmp_path, tmp_path).set_environment()
    assert os.environ["NVTE_NVFP4_DISABLE_RHT"] == "1"
    assert "NVTE_BACKWARD_OVERRIDE" not in os.environ
    assert os.environ["NVTE_USE_FAST_MATH"] == "0", "it would skip a rounding to BF16"
    assert "TRITON_CACHE_MANAGER" not in os.environ, "megatron-core's own refuses every Triton after 3.1"


@pytest.mark.usefixtures("without_te")
@pytest.mark.parametrize("run", ["8b_bf16", "12b_fp8", "8b_mxfp4"])
def test_runs_on_other_paths_inherit_no_switch_either(segment, layouts, monkeypatch, tmp_path, run):
    monkeypatch.setenv("NVTE_BACKWARD_OVERRIDE", "high_precision")
    monkeypatch.setenv("NVTE_NVFP4_DISABLE_RHT", "1")
    Job(segment(run), layouts["gb200"], tmp_path, tmp_path).set_environment()
    assert not {"NVTE_BACKWARD_OVERRIDE", "NVTE_NVFP4_DISABLE_RHT"} & set(os.environ)


def test_the_environment_comes_before_transformer_engine(segment, layouts, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformer_engine", object())
    with pytest.raises(AssertionError, match="read when it is imported"):
        Job(segment("12b_nvfp4"), layouts["gb200"], tmp_path, tmp_path).set_environment()


def test_a_hybrid_without_causal_conv1d_takes_the_path_that_needs_none(tmp_path, layouts, monkeypatch):
    part = freeze(tmp_path / "run")
    process = Job(part, layouts["gb200"], tmp_path, tmp_path)
    monkeypatch.setattr(job, "find_spec", lambda name: None)
    words = [argument.option for argument in process.arguments(find_start(part, tmp_path))]
    assert "--disable-mamba-mem-eff-path" in words
    monkeypatch.setattr(job, "find_spec", lambda name: object())
    words = [argument.option for argument in process.arguments(find_start(part, tmp_path))]
    assert "--disable-mamba-mem-eff-path" not in words


def test_a_fork_of_a_diverged_run_has_diverged_with_it(tmp_path, launched, data_dir):
    link = {"run": "parent", "segment": 0, "run_hash": "0123456789abcdef", "tokens": 8 * STEP_TOKENS}
    child = freeze(tmp_path / "child", start=8, parent=link, recipe="bf16")
    (tmp_path / "state" / "0123456789abcdef").mkdir(parents=True)
    (tmp_path / "state" / "0123456789abcdef" / "diverged").write_text("loss")
    assert Job(child, load_layout("gb200"), data_dir, tmp_path / "state").run() == 0
    record = json.loads((child.path.parent / "done.json").read_text())
    assert (record["status"], record["end_tokens"]) == ("diverged", 8 * STEP_TOKENS)
    assert Job(child, load_layout("gb200"), data_dir, tmp_path / "state").run() == 0, (
        "and needs no more training"
    )


def test_a_checkpoint_of_other_pipeline_stages_is_refused_before_megatron_starts(
    tmp_path, launched, data_dir
):
    part, layout = freeze(tmp_path / "run", recipe="bf16"), load_layout("gb200")
    own = tmp_path / "state" / part.run_hash
    start = find_start(part, tmp_path / "state")
    writer = Recorder(part, tmp_path / "state", start, degrees=(1, 2))
    (own / "iter_0000005").mkdir()
    writer.saved(5, processes=0)
    writer._lock.release()
    with pytest.raises(
        ValueError, match="written with tensor: 1, pipeline: 2; layout gb200 has tensor: 1, pipeline: 1"
    ):
        Job(part, layout, data_dir, tmp_path / "state").run()


def test_a_batch_that_does_not_divide_is_refused_before_megatron_starts(
    tmp_path, launched, data_dir, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "3")
    part = freeze(tmp_path / "run", recipe="bf16")
    with pytest.raises(ValueError, match="4 sequences does not divide by 6"):
        Job(part, load_layout("gb200"), data_dir, tmp_path / "state").run()


def test_a_process_without_a_launcher_is_told_how_to_start(tmp_path, launched, data_dir, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR")
    part = freeze(tmp_path / "run", recipe="bf16")
    with pytest.raises(ValueError, match="MASTER_ADDR is not set; start one process a GPU"):
        Job(part, load_layout("gb200"), data_dir, tmp_path / "state").run()


@pytest.mark.parametrize(
    ("name", "value"), [("WORLD_SIZE", "two"), ("WORLD_SIZE", "0"), ("RANK", "1"), ("RANK", "-1")]
)
def test_a_launchers_wrong_number_is_named(name, value, tmp_path, launched, data_dir, monkeypatch):
    monkeypatch.setenv(name, value)
    part = freeze(tmp_path / "run", recipe="bf16")
    with pytest.raises(ValueError, match=f"{name} is '{value}', but must be a whole number from"):
        Job(part, load_layout("gb200"), data_dir, tmp_path / "state")


def test_the_command_refuses_in_one_line_where_the_packages_are_missing(
    tmp_path, caplog, data_dir, monkeypatch
):
    def missing(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", missing)
    part = freeze(tmp_path / "run")
    assert main([str(part.path), "--data", str(data_dir), "--state", str(tmp_path / "state")]) == 1
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line.startswith("error: the cluster backend cannot run here: ")
    assert "\n" not in line
    assert not (tmp_path / "state").exists(), "nothing was written"


def test_a_portable_run_is_refused(tmp_path, caplog):
    path = portable.freeze(tmp_path / "run")
    assert main([str(path), "--data", "x", "--state", "y"]) == 1
    assert "python -m repro.portable" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RANK", "", "RANK is '', but must be a whole number from 0 to 0"),
        ("REPRO_CLUSTER_EMULATE", "yes", "REPRO_CLUSTER_EMULATE: 'yes' is neither 0 nor 1"),
        ("REPRO_CLUSTER_LAYOUT", "h200", "REPRO_CLUSTER_LAYOUT: no layout 'h200'"),
    ],
)
def test_a_jobs_variable_that_makes_no_sense_is_told_in_one_line(
    tmp_path, caplog, launched, monkeypatch, name, value, said
):
    monkeypatch.setenv(name, value)
    part = freeze(tmp_path / "run")
    assert main([str(part.path), "--data", str(tmp_path), "--state", str(tmp_path / "state")]) == 1
    assert f"error: {said}" in caplog.text


def test_a_position_between_two_steps_is_refused(tmp_path):
    part = freeze(tmp_path / "run")
    schedule = {**part.schedule, "warmup_tokens": part.step_tokens + 1}
    with pytest.raises(ValueError, match=r"schedule\.warmup_tokens = 129 is no multiple of a step \(128\)"):
        freeze(tmp_path / "run", schedule=schedule)


def test_every_module_imports_without_the_packages():
    code = (
        "import sys; from repro.cluster import data, emulation, job, loop, precision, quantizers, recorder, session; "
        "bad = {'megatron', 'transformer_engine', 'mamba_ssm'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("batch", ["64", "100", "128"])
def test_the_benchmark_of_a_step_makes_a_job_for_any_batch(monkeypatch, batch):
    """Its model, schedule and layout are made without a GPU, so nothing of that can fail where there is one."""
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(benchmarks))
    script = importlib.import_module("train_step_megatron")
    words = ["--layout", "h200x8", "--recipe", "nvfp4", "--emulate", "--batch", batch, "--micro", "4"]
    process = script.make_job(script.parser_of_options().parse_args(words))
    assert process.segment.schedule["batch_sequences"] == int(batch)
    assert process.arguments(find_start(process.segment, process.state_root))
