"""The five faults of snakemake-executor-plugin-slurm 2.8.0: each shown on the plugin as it is, then cured.

No Slurm is started. When a newer plugin makes a test of the fault itself fail, its repair can go.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm as plugin
import yaml

from repro.workflow import plugin_repairs, submit

ROOT = Path(__file__).resolve().parents[2]
PROFILE = yaml.safe_load((ROOT / "slurm/config.yaml").read_text())


class Rounds:
    """The plugin's executor with told answers instead of a cluster: `ask` is one round of status queries."""

    def __init__(
        self, *, repaired: bool, answers: list[dict[str, str] | None], command: str = "squeue"
    ) -> None:
        self.module = ModuleType("plugin_copy")
        self.answers, self.reported = answers, []
        original = plugin.Executor.check_active_jobs
        namespace = {**original.__globals__, "get_min_job_age": lambda: 300}
        namespace["is_query_tool_available"] = lambda name: True

        async def query(text: str, logger: object) -> tuple[dict[str, str] | None, float | None]:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            return (None, None) if answer is None else (answer, 0.1)

        self.module.query_job_status = query
        self.module.get_submit_command = lambda: "sbatch"
        copied = type(original)(original.__code__, namespace, original.__name__)
        self.module.Executor = type("Executor", (), {"check_active_jobs": copied})
        if repaired:
            plugin_repairs.repair(self.module)
        namespace["query_job_status"] = self.module.query_job_status
        self.executor = self.module.Executor()
        settings = SimpleNamespace(status_attempts=2, status_command=command, requeue=True)
        settings.keep_successful_logs, settings.init_seconds_before_status_checks = True, 40
        self.executor.workflow = SimpleNamespace(executor_settings=settings)
        self.executor.logger = logging.getLogger("test")
        self.executor.run_uuid = "run"
        self.executor.get_status_command = lambda: command
        self.executor.status_rate_limiter = contextlib.AsyncExitStack()
        self.executor._status_query_failures = self.executor._status_query_calls = 0
        self.executor._status_query_total_seconds = self.executor._status_query_max_seconds = 0.0
        self.executor._status_query_min_seconds = None
        self.executor._status_query_cycle_rows = []
        self.executor.next_seconds_between_status_checks = 40
        self.executor.report_job_success = lambda job: self.reported.append(("success", job.external_jobid))
        self.executor.report_job_error = lambda job, **_: self.reported.append(("error", job.external_jobid))

    def ask(self, jobs: list[SimpleNamespace]) -> list[SimpleNamespace]:
        async def collect() -> list[SimpleNamespace]:
            return [job async for job in self.executor.check_active_jobs(jobs)]

        return asyncio.run(collect())


@pytest.fixture
def jobs() -> list[SimpleNamespace]:
    return [SimpleNamespace(external_jobid=number, aux={}) for number in ("1", "2")]


def test_fault_1_an_outage_of_a_whole_round_drops_no_job(jobs):
    assert Rounds(repaired=False, answers=[None]).ask(jobs) == [], (
        "the plugin forgets its jobs: the fault is there"
    )
    rounds = Rounds(repaired=True, answers=[None])
    assert rounds.ask(jobs) == jobs
    assert not rounds.reported
    rounds.answers = [{"1": "COMPLETED", "2": "RUNNING"}]
    assert rounds.ask(jobs) == jobs[1:]
    assert rounds.reported == [("success", "1")]


def test_fault_2_sacct_s_cancelled_by_is_an_end(jobs):
    answer = {"1": "CANCELLED by 0", "2": "RUNNING"}
    assert Rounds(repaired=False, answers=[answer], command="sacct").ask(jobs) == jobs, "the fault is there"
    rounds = Rounds(repaired=True, answers=[answer], command="squeue")
    assert rounds.ask(jobs) == jobs[1:]
    assert rounds.reported == [("error", "1")]
    assert PROFILE["slurm-status-command"] == "squeue"


def test_fault_3_retries_stand_in_the_profile_and_in_no_rule():
    assert PROFILE["retries"] >= 1
    for path in [ROOT / "Snakefile", *(ROOT / "repro/workflow").glob("*.smk")]:
        assert not re.search(r"^\s*retries:", path.read_text(), re.MULTILINE), (
            f"{path} has retries of its own"
        )


def test_fault_4_no_array_jobs():
    assert not [key for key in PROFILE if "array" in key]


def test_fault_5_a_job_that_squeue_forgot_ends(jobs):
    answer = {"2": "RUNNING"}
    plain = Rounds(repaired=False, answers=[answer])
    assert [plain.ask(jobs) for _ in range(5)][-1] == jobs, "asked for for ever: the fault is there"
    rounds = Rounds(repaired=True, answers=[answer])
    assert rounds.ask(jobs) == rounds.ask(jobs) == jobs
    assert rounds.ask(jobs) == jobs[1:]
    assert rounds.reported == [("success", "1")]


def test_an_outage_does_not_make_jobs_unknown(jobs):
    rounds = Rounds(repaired=True, answers=[None])
    for _ in range(6):
        assert rounds.ask(jobs) == jobs
    assert not rounds.reported


def test_the_plugin_is_the_one_that_was_looked_at():
    assert importlib.metadata.version("snakemake-executor-plugin-slurm").startswith("2.8."), (
        "another plugin: run the tests of its faults and state what holds in repro/workflow/plugin_repairs.py"
    )


def test_a_plugin_of_other_names_is_left_alone(caplog):
    plugin_repairs.repair(ModuleType("other"))
    assert "not repaired" in caplog.text


def test_a_job_that_slurm_held_after_a_failed_launch_is_released(tmp_path, monkeypatch, caplog):
    squeue = "#!/bin/sh\necho '6|launch failed requeued held'\necho '7|Resources'\necho '8|JobHeldUser'\n"
    _commands(tmp_path, monkeypatch, squeue=squeue, scontrol="#!/bin/sh\necho $* >> orders\n")
    plugin_repairs.release_held("run", logging.getLogger("test"))
    assert (tmp_path / "orders").read_text() == "release 6\n"
    assert "Slurm held job 6" in caplog.text


# Submission

SBATCH = """#!/bin/sh
echo call >> calls
if [ "$(wc -l < calls)" -lt 3 ]; then echo "sbatch: error: {message}" >&2; exit 1; fi
echo 77
"""


def _commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(submit, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("sys.stdin", None)


def test_sbatch_waits_for_the_controller(tmp_path, monkeypatch, capsys):
    message = "Batch job submission failed: Unable to contact slurm controller (connect failure)"
    _commands(tmp_path, monkeypatch, sbatch=SBATCH.format(message=message))
    assert submit.main(["sbatch", "--parsable"]) == 0
    assert capsys.readouterr().out.strip() == "77"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([], "say the command that submits a job"),
        (["no-such-sbatch"], "no-such-sbatch: no such command here"),
    ],
)
def test_a_command_that_is_none_is_told_in_one_line(command, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert submit.main(command) == 127
    assert said in capsys.readouterr().err


def test_ctrl_c_while_the_controller_is_away_ends_in_one_line(tmp_path, monkeypatch, capsys):
    def stopped(_):
        raise KeyboardInterrupt

    away = "#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n"
    _commands(tmp_path, monkeypatch, sbatch=away)
    monkeypatch.setattr(submit.time, "sleep", stopped)
    assert submit.main(["sbatch", "--parsable"]) == 130
    assert capsys.readouterr().err == "python -m repro.workflow.submit: stopped\n"


def test_sbatch_is_not_tried_again_when_something_may_have_been_submitted(tmp_path, monkeypatch, capsys):
    message = "Batch job submission failed: Socket timed out on send/recv operation"
    _commands(tmp_path, monkeypatch, sbatch=SBATCH.format(message=message))
    assert submit.main(["sbatch", "--parsable"]) == 1
    assert "Socket timed out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("comment", "submitted", "found"),
    [
        ("rule_train_wildcards_a_0", "2099-01-01T00:00:00", "41"),
        ("rule_train_wildcards_b_0", "2099-01-01T00:00:00", None),  # another segment
        ("rule_train_wildcards_a_0", "2001-01-01T00:00:00", None),  # before its run.yaml was frozen anew
    ],
)
def test_a_running_job_is_found_again(tmp_path, monkeypatch, comment, submitted, found):
    squeue = f"#!/bin/sh\necho '41|{submitted}|{comment}|{tmp_path}'\n"
    _commands(tmp_path, monkeypatch, squeue=squeue, scontrol="#!/bin/sh\necho $* > renamed\n")
    (tmp_path / "run.yaml").touch()
    command = ["sbatch", "--job-name", "new", "--comment", "rule_train_wildcards_a_0", "-D", str(tmp_path)]
    assert submit.adopt([*command, "--wrap=python run.yaml", "run.yaml"]) == found
    assert (tmp_path / "renamed").exists() == (found is not None)
