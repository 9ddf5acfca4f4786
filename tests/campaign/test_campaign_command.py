"""`python -m repro.campaign`: what it refuses, in which words, and what `start` hands on."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from repro.campaign.__main__ import main
from repro.campaign.machine import Machine
from repro.campaign.preflight import check_machine
from repro.experiments import freeze_all, load


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["plan", "--gpus", "0"], "argument --gpus: '0': a whole number from 1 on"),
        (["run", "x", "--data", "d", "--gpus", "-1"], "argument --gpus: '-1': a whole number from 1 on"),
        (
            ["run", "x", "--data", "d", "--minutes", "0"],
            "argument --minutes: '0': minutes, more than 0 and finite",
        ),
        (
            ["start", "x", "--data", "d", "--minutes", "nan"],
            "argument --minutes: 'nan': minutes, more than 0 and finite",
        ),
        (["run", "x", "--data", "d", "--device", "gpu"], "argument --device: invalid choice: 'gpu'"),
    ],
)
def test_numbers_that_are_none_are_refused(words, expected, capsys):
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert expected in capsys.readouterr().err


def test_a_plan_without_frozen_runs_says_how_to_write_them(tmp_path, capsys):
    assert main(["--frozen", str(tmp_path), "plan"]) == 2
    said = capsys.readouterr()
    assert "`repro freeze --tier proxy`" in said.err
    assert said.out == ""


def test_a_recorded_run_is_not_trained_again_unless_told_so(tmp_path, capsys):
    freeze_all(load("proxy"), tmp_path)
    words = [
        "--frozen",
        str(tmp_path / "runs"),
        "run",
        "8b_nvfp4",
        "--data",
        "d",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "8b_nvfp4: already recorded in recorded/proxy; `--recorded none` before `run` trains again" in said


def test_nothing_is_collected_where_no_campaign_was(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["collect", "--from", str(tmp_path / "typo"), "--out", str(out)]) == 2
    assert "typo: no campaign was started there" in capsys.readouterr().err
    assert not out.exists()


def test_without_a_gpu_the_cpu_is_named(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ValueError, match="2 GPUs asked for, 0 found: without one, say --device cpu"):
        check_machine(Machine(gpus=2), [], Path("none"))


def test_with_fewer_gpus_than_asked_for_their_number_is_named(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    check_machine(Machine(gpus=1), [], Path("none"))
    with pytest.raises(ValueError, match="2 GPUs asked for, 1 found: say --gpus 1"):
        check_machine(Machine(gpus=2), [], Path("none"))


def test_a_second_run_goes_to_another_gpu_and_sees_that_one_alone(monkeypatch):
    machine = Machine(gpus=2, per_gpu=2)
    assert machine.places == [0, 1, 0, 1]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machine.environment(1)["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert machine.environment(1)["CUDA_VISIBLE_DEVICES"] == "6", "of those that the driver may use"


@pytest.mark.parametrize(
    ("counts", "finished", "code"),
    [({"done": 2}, True, 0), ({"done": 1, "failed": 1}, True, 3), ({"done": 1, "waiting": 1}, False, 3)],
)
def test_waiting_ends_well_only_where_all_is_done(counts, finished, code, tmp_path):
    content = {"finished": finished, "counts": counts, "deadline": 0, "rates": {}, "tasks": {}}
    (tmp_path / "status.json").write_text(json.dumps(content))
    assert main(["wait", "--out", str(tmp_path), "--minutes", "1"]) == code


def test_ctrl_c_ends_the_waiting_in_one_line(tmp_path, monkeypatch, capsys):
    content = {"finished": False, "counts": {}, "deadline": 0, "rates": {}, "tasks": {}}
    (tmp_path / "status.json").write_text(json.dumps(content))

    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("repro.campaign.session.is_at_work", lambda _: True)
    monkeypatch.setattr(time, "sleep", stopped)
    assert main(["wait", "--out", str(tmp_path)]) == 130
    told = "python -m repro.campaign wait: stopped; a started campaign goes on\n"
    assert capsys.readouterr() == ("", told)


def test_start_hands_on_the_arguments_that_it_was_given(tmp_path, monkeypatch, capsys):
    started = []

    class Ended:
        pid = -1

        def __init__(self, command, **options):
            started.append(command)

        def poll(self):
            return 2

    monkeypatch.setattr(subprocess, "Popen", Ended)
    words = ["--configs", "configs", "start", "sweep", "8b_bf16", "--data", "d", "--out", str(tmp_path)]
    assert main([*words, "--deadline", "99", "--per-gpu", "2", "--keep-states"]) == 2
    [command] = started
    assert command[1:3] == ["-m", "repro.campaign"]
    run = command.index("run")
    assert command[run : run + 5] == ["run", "sweep", "8b_bf16", "--data", "d"]
    assert command[-5:] == ["--deadline", "99.0", "--per-gpu", "2", "--keep-states"]
    assert main([*words, "--minutes", "2"]) == 2
    deadline, seconds = started[1][-2:]
    assert deadline == "--deadline", "minutes count from the start, not from when the driver is at work"
    assert float(seconds) - time.time() == pytest.approx(120, abs=30)


def test_a_run_ends_at_its_deadline_or_after_its_minutes(frozen, tmp_path, monkeypatch):
    deadlines = []
    monkeypatch.setattr("repro.campaign.preflight.link_data", lambda *_: None)
    monkeypatch.setattr("repro.campaign.driver.Campaign.run", lambda _, deadline: deadlines.append(deadline))
    path = tmp_path / "campaign.yaml"
    rates = {"tokens_per_second": {}, "start_seconds": 0, "evaluate_seconds": 1, "measure_seconds": 1}
    file = {"tier": "tiny", "minutes": 5, "machine": {"device": "cpu"}, "rates": rates, "leases": {}}
    path.write_text(json.dumps(file))
    words = ["--campaign", str(path), "--frozen", str(frozen), "--recorded", "none", "run", "1p2b_bf16"]
    words += ["--data", "d", "--out", str(tmp_path / "out")]
    began = time.time()
    for more in (["--deadline", "99"], ["--minutes", "2"], []):
        assert main([*words, *more]) == 3, "the driver above does nothing"
    assert deadlines[0] == 99.0
    assert [deadline - began for deadline in deadlines[1:]] == pytest.approx([120, 300], abs=30)


def test_start_prints_what_the_driver_notes(tmp_path, monkeypatch, capsys):
    class AtWork:
        pid = 7

        def __init__(self, command, **options):
            status = {"pid": self.pid, "notes": ["NO TIME FOR measure:x"]}
            (tmp_path / "status.json").write_text(json.dumps(status))

        def poll(self):
            return None

    monkeypatch.setattr(subprocess, "Popen", AtWork)
    assert main(["start", "x", "--data", "d", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["NO TIME FOR measure:x"]


@pytest.mark.parametrize(("minutes", "is_said"), [(2.0, True), (3.0, False)])
def test_a_plan_names_the_tables_that_do_not_fit(minutes, is_said, frozen, tmp_path, capsys):
    file = {
        "tier": "tiny",
        "machine": {"device": "cpu"},
        "minutes": minutes,
        "rates": {
            "tokens_per_second": {"1p2b bf16": 1e9},
            "start_seconds": 60,
            "evaluate_seconds": 1,
            "measure_seconds": 60,
        },
        "leases": {"small": {"runs": ["1p2b_bf16"], "measure": ["1p2b_bf16"]}},
    }
    path = tmp_path / "campaign.yaml"
    path.write_text(json.dumps(file))
    assert main(["--campaign", str(path), "--frozen", str(frozen), "--recorded", "none", "plan"]) == 0
    assert ("NO TIME FOR measure:1p2b_bf16" in capsys.readouterr().out) is is_said


def test_a_plan_of_several_names_also_says_what_they_take_together(frozen, tmp_path, capsys):
    file = {
        "tier": "tiny",
        "machine": {"device": "cpu", "gpus": 2},
        "minutes": 5,
        "rates": {
            "tokens_per_second": {"12b fp8_block": 1e9, "1p2b bf16": 1e9},
            "start_seconds": 60,
            "evaluate_seconds": 60,
            "measure_seconds": 60,
        },
        "leases": {"one": {"runs": ["1p2b_bf16"]}, "two": {"runs": ["12b_fp8"], "evaluate": ["12b_fp8"]}},
    }
    path = tmp_path / "campaign.yaml"
    path.write_text(json.dumps(file))

    def plan(*names: str) -> str:
        where = ["--campaign", str(path), "--frozen", str(frozen), "--recorded", "none"]
        assert main([*where, "plan", *names]) == 0
        return capsys.readouterr().out

    def minutes(said: str, title: str) -> float:
        return float(re.search(rf"^{title}: .* ([\d.]+) minutes", said, re.MULTILINE)[1])

    both = plan("two", "one")
    apart = [minutes(both, name) for name in ("one", "two")]
    # The sum is printed in whole minutes, its parts in tenths.
    assert minutes(both, "total, one lease after another") == pytest.approx(sum(apart), abs=0.6)
    # Each on a GPU of its own: as long as the longer one.
    assert minutes(both, "together, `start two one`") == max(apart)
    assert "together" not in plan("two") + plan()
