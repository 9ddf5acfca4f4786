"""Tasks that a campaign reads from frozen runs, and what it learns of their speed."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import yaml
from made_up import rates

from repro.campaign.tasks import Task, cost_class_of, read_frozen, tasks_of, with_dependants


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


def test_a_mixture_of_formats_is_no_run_of_either(frozen):
    content = read_frozen(frozen, "1p2b_weights_same")[0]
    recipe = content["recipe"]
    for gemm in ("dgrad", "wgrad"):
        recipe[gemm]["g"] = {**recipe[gemm]["g"], "format": "mxfp4"}
    mixture = cost_class_of(content)
    assert mixture == "1p2b mxfp4+nvfp4"
    known = rates()
    known.tokens_per_second = {"1p2b mxfp4": 1e6, "1p2b nvfp4": 1e6}
    with pytest.raises(ValueError, match=r"nothing for '1p2b mxfp4\+nvfp4'; known: 1p2b mxfp4, 1p2b nvfp4"):
        known.rate(mixture, 1)


def test_an_unknown_run_is_named(frozen):
    with pytest.raises(ValueError, match="no frozen run '1p2b_bf61'"):
        tasks_of(frozen, ["1p2b_bf61"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seeds": 1}, r"unknown key 'seeds'; did you mean 'seed'\?"),
        ({"optimizer": {}}, "optimizer: key 'name' is missing"),
        ({"backend": "cluster"}, "backend is 'cluster', not 'portable'"),
    ],
)
def test_a_file_that_the_trainer_would_refuse_is_named_before_anything_starts(frozen, tmp_path, change, told):
    shutil.copytree(frozen / "12b_nvfp4", tmp_path / "12b_nvfp4")
    path = tmp_path / "12b_nvfp4" / "2" / "run.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(ValueError, match=rf"12b_nvfp4/2/run\.yaml: {told}.*; `repro freeze --tier .* again$"):
        read_frozen(tmp_path, "12b_nvfp4")


def test_a_plan_is_read_without_torch(frozen):
    code = (
        "import sys; from pathlib import Path; import repro.campaign.leases\n"
        "from repro.campaign.tasks import tasks_of\n"
        "assert tasks_of(Path(sys.argv[1]), ['12b_nvfp4']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(frozen)]).returncode == 0


def test_measured_rates_replace_the_assumed_ones():
    task = Task("a/0", "train", "a", 0, 10_000, "1p2b bf16", ())
    known = rates()
    known.learn(task, 100.0)
    assert known.seconds(task, per_gpu=2) == pytest.approx(known.safety * 100)
    with pytest.raises(ValueError, match="nothing for '8b mxfp4'"):
        known.rate("8b mxfp4", 1)


def test_an_assumed_rate_is_shared_by_the_runs_on_a_gpu_and_its_start_has_the_margin_too():
    known = rates(start_seconds=10)
    known.sharing = {2: 1.5}
    assert [known.rate("12b bf16", number) for number in (1, 2)] == [1e6, 0.75e6]
    task = Task("a/0", "train", "a", 0, 3_000_000, "12b bf16", ())
    assert known.seconds(task, per_gpu=2) == pytest.approx(known.safety * (10 + 4))


def test_a_short_fork_does_not_replace_a_measured_rate():
    known = rates()
    known.learn(Task("a/0", "train", "a", 0, 100_000, "12b nvfp4", ()), 1000.0)
    known.learn(Task("b/0", "train", "b", 0, 9_000, "12b nvfp4", ()), 300.0)
    assert known.measured["12b nvfp4"] == 1000.0
    known.learn(Task("c/0", "train", "c", 0, 5_000, "1p2b bf16", ()), 1000.0)
    assert "1p2b bf16" not in known.measured, "five seconds, most of them its first step"
