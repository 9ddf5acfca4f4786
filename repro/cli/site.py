"""What a site says about cluster runs, for commands that print what its jobs would do.

A job gets the variables of repro.cluster from slurm/site.yaml, or without a profile from the shell. Here the shell
comes first, so that one command can be tried on another layout; who sets a value is told beside it.

Not here: the site as a whole (repro.workflow.site), what the values mean. Reads no torch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from repro.experiments.errors import read_mapping

#: What `snakemake --profile slurm` runs; names the site's file.
PROFILE = Path("slurm/workflow.yaml")


class Setting(NamedTuple):
    """The value of a variable, None where nobody sets it, and who does, in words."""

    value: str | None
    said_by: str


def setting(variable: str) -> Setting:
    """`variable` as the shell has it, else the environment of the site's file.

    Raises ValueError naming the file that is not YAML or whose environment has no names.
    """
    if variable in os.environ:
        return Setting(os.environ[variable], variable)
    site = read_mapping(PROFILE).get("site") if PROFILE.is_file() else None
    if site is None:
        return Setting(None, "no site")
    environment = read_mapping(Path(site)).get("environment") or {}
    if not isinstance(environment, dict):
        raise ValueError(f"{site}: environment: {environment!r} has no names; write NAME: value")
    value = environment.get(variable)
    return Setting(None if value is None else str(value), f"{site}: environment.{variable}")
