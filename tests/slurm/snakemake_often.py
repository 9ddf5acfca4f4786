"""Snakemake that asks Slurm every 3 s: the jobs of the tests last seconds, the plugin slows down to minutes.

Run as a script with Snakemake's own arguments. Jobs on the nodes run Snakemake itself.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake.cli import main

_check = plugin.Executor.check_active_jobs


async def _check_often(self: Any, active_jobs: list[Any]) -> AsyncIterator[Any]:
    async for job in _check(self, active_jobs):
        yield job
    self.next_seconds_between_status_checks = 3


if __name__ == "__main__":
    plugin.Executor.check_active_jobs = _check_often
    sys.exit(main())
