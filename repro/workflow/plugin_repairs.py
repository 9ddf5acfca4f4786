"""Repairs of snakemake-executor-plugin-slurm 2.8.0, applied to its classes when the workflow is read for a cluster.

1. A status round in which every query fails drops all jobs: Snakemake then waits for ever. Here every job that a
   round neither reported nor kept is kept, so an absent controller or database costs time only.
2. sacct says `CANCELLED by 0`; the plugin knows `CANCELLED` and never sees the end. Here the first word counts.
3. A finished job that squeue has forgotten (short MinJobAge) is asked for for ever. Here a job that several answered
   rounds in a row did not know counts as ended; Snakemake then looks for its output.
4. sbatch fails while the controller is away, and each failure uses up a retry. Here it is tried again for minutes
   (repro.workflow.submit), and only where nothing can have been submitted.
5. Slurm holds a job whose launch failed through no fault of its own (a prolog; a controller that died before it noted
   the start), and Snakemake waits for ever. Here it is released, and the log says so.

What settings can cure is in slurm/config.yaml: retries there and in no rule, no array jobs. A newer plugin that has
other names is left as it is, with a warning. Not here: anything of a site.
"""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

log = logging.getLogger("repro.workflow")

_ROUNDS_UNKNOWN = 3
_NAMES = ("Executor", "query_job_status", "get_submit_command")


def repair(plugin: Any) -> None:
    """Repairs the plugin module in place, once. A module without the expected names is left alone with a warning."""
    absent = [name for name in _NAMES if not hasattr(plugin, name)]
    if absent:
        log.warning("the Slurm plugin has no %s: its known faults are not repaired", ", ".join(absent))
        return
    if getattr(plugin, "_repaired", False):
        return
    plugin._repaired = True
    plugin.query_job_status = _first_words(plugin.query_job_status)
    plugin.get_submit_command = _patient(plugin.get_submit_command)
    plugin.Executor.check_active_jobs = _keeping_all(plugin.Executor.check_active_jobs)


def _first_words(query: Callable[..., Any]) -> Callable[..., Any]:
    async def query_job_status(command: str, logger: Any) -> tuple[dict[str, str] | None, float | None]:
        states, seconds = await query(command, logger)
        if states is not None:
            states = {job: (state.split() or [""])[0].rstrip("+") for job, state in states.items()}
        _Answers.last = states
        return states, seconds

    return query_job_status


class _Answers:
    """The last answer to a status query; None when there was none."""

    last: dict[str, str] | None = None


def _keeping_all(check: Callable[..., Any]) -> Callable[..., Any]:
    async def check_active_jobs(self: Any, active_jobs: list[Any]) -> AsyncIterator[Any]:
        reported: set[str] = set()
        unknown: dict[str, int] = self.__dict__.setdefault("_rounds_unknown", {})
        success, error = self.report_job_success, self.report_job_error

        def noting(report: Callable[..., None]) -> Callable[..., None]:
            def note(job: Any, *arguments: Any, **options: Any) -> None:
                reported.add(job.external_jobid)
                report(job, *arguments, **options)

            return note

        _Answers.last = None
        self.report_job_success, self.report_job_error = noting(success), noting(error)
        kept = []
        try:
            async for job in check(self, active_jobs):
                kept.append(job)
        finally:
            self.report_job_success, self.report_job_error = success, error
        dropped = (
            {job.external_jobid for job in active_jobs} - {job.external_jobid for job in kept} - reported
        )
        if dropped:
            self.logger.warning("Slurm does not answer status queries; asking again, no job is lost.")
        for job in active_jobs:
            number = job.external_jobid
            if number in reported:
                unknown.pop(number, None)
                continue
            if _Answers.last is not None:
                known = number in _Answers.last or number.split("_")[0] in _Answers.last
                unknown[number] = 0 if known else unknown.get(number, 0) + 1
            if unknown.get(number, 0) >= _ROUNDS_UNKNOWN:
                self.logger.warning(f"Slurm no longer knows job {number}; its output tells how it ended.")
                success(job)
                continue
            yield job
        if "PENDING" in (_Answers.last or {}).values():
            release_held(self.run_uuid, self.logger)

    return check_active_jobs


def release_held(invocation: str, logger: Any) -> None:
    """Lets the invocation's jobs start that Slurm held because their launch failed."""
    question = ["squeue", "--noheader", "--states=PD", "--name", invocation, "--format=%i|%r"]
    with suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(question, capture_output=True, text=True, timeout=60, check=False)
        for line in answer.stdout.splitlines():
            number, _, reason = line.partition("|")
            if reason.replace("_", " ") == "launch failed requeued held":
                logger.warning(f"Slurm held job {number} ({reason}): released, it starts again.")
                subprocess.run(["scontrol", "release", number], capture_output=True, timeout=60, check=False)


def _patient(submit: Callable[..., str]) -> Callable[..., str]:
    def get_submit_command(*arguments: Any, **options: Any) -> str:
        command = submit(*arguments, **options)
        assert command.startswith("sbatch "), command
        return f"{shlex.quote(sys.executable)} -m repro.workflow.submit {command}"

    return get_submit_command
