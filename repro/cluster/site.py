"""What a site says about the runs of this backend, for commands that print what its jobs would do.

A job gets the two variables from slurm/site.yaml, or without a profile from the shell (`from_shell`). What only
prints looks into the shell first, so that one command can be tried on another layout, and then into the site's file
(`from_site`); who sets a value is told beside it.

Not here: the site as a whole (repro.workflow.site), what the values mean. Reads no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from repro.cluster.layout import DEFAULT_LAYOUT, Layout, load_layout
from repro.experiments.errors import read_mapping

#: What belongs to a site and not to a run: set once (slurm/site.yaml, or exported before snakemake).
LAYOUT_VARIABLE, EMULATE_VARIABLE = "REPRO_CLUSTER_LAYOUT", "REPRO_CLUSTER_EMULATE"
#: What `snakemake --profile slurm` runs; names the site's file.
PROFILE = Path("slurm/workflow.yaml")


class Setting(NamedTuple):
    """The value of a variable, None where nobody sets it, and who does, in words."""

    value: str | None
    said_by: str


LookUp = Callable[[str], Setting]


def from_shell(variable: str) -> Setting:
    """`variable` as a job has it."""
    return Setting(os.environ.get(variable), variable)


def from_site(variable: str) -> Setting:
    """`variable` as the shell has it, else the environment of the site's file.

    Raises ValueError naming the file that is not YAML or whose environment has no names.
    """
    if variable in os.environ:
        return from_shell(variable)
    site = read_mapping(PROFILE).get("site") if PROFILE.is_file() else None
    if site is None:
        return Setting(None, "no site")
    environment = read_mapping(Path(site)).get("environment") or {}
    if not isinstance(environment, dict):
        raise ValueError(f"{site}: environment: {environment!r} has no names; write NAME: value")
    value = environment.get(variable)
    return Setting(None if value is None else str(value), f"{site}: environment.{variable}")


def layout_here(asked: str | None, look_up: LookUp = from_site) -> tuple[Layout, str]:
    """The layout, `asked` for or else set, and who says so.

    Raises ValueError with the nearest name for a layout that is not there, and who asks for it.
    """
    if asked is not None:
        return load_layout(asked), "--layout"
    value, said_by = look_up(LAYOUT_VARIABLE)
    if value is None:
        return load_layout(DEFAULT_LAYOUT), "nobody: the one that jobs take then; --layout names another"
    try:
        return load_layout(value), f"{said_by}; --layout names another"
    except ValueError as error:
        raise ValueError(f"{said_by}: {error}") from None


def emulation_here(asked: bool | None, look_up: LookUp = from_site) -> bool:
    """Whether 4-bit operands are made in software: as `asked` for, or else set.

    Raises ValueError, naming who sets it, for a value that is neither 0 nor 1.
    """
    if asked is not None:
        return asked
    value, said_by = look_up(EMULATE_VARIABLE)
    if value not in (None, "0", "1"):
        raise ValueError(f"{said_by}: {value!r} is neither 0 nor 1")
    return value == "1"
