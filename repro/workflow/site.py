"""One cluster: the record that slurm/site.yaml fills in, and what its jobs ask Slurm for.

A site is partitions, an account, the shape of a node, a time limit, and how a command gets its environment (shell
lines, variables, a container). Rules and launcher take all of it from here, so a new cluster is one edited file.
Not here: how a job runs its ranks (repro.workflow.launch); what a run needs (configs/tiers).
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from repro.experiments.errors import read_mapping, validate
from repro.experiments.record import Record


class Partition(Record):
    """Partition of jobs without and with GPUs; null leaves the choice to Slurm's default."""

    cpu: str | None = None
    gpu: str | None = None


class Container(Record):
    """An image in which the ranks run; the working tree and `mounts` are visible inside under their own paths."""

    tool: Literal["pyxis", "apptainer"]
    image: str
    mounts: tuple[str, ...] = ()


class Site(Record):
    """The content of site.yaml. Memory in GB, times in the unit of the key's name."""

    partition: Partition
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus_per_node: Annotated[int, Field(ge=0)]
    cpus_per_node: PositiveInt
    memory_gb_per_node: PositiveFloat
    time_limit_minutes: PositiveInt
    warn_seconds: PositiveInt = 300
    tries_without_progress: PositiveInt = 3
    setup: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    container: Container | None = None
    sbatch_options: str = ""
    sbatch_options_multi_node: str = ""
    srun_options: tuple[str, ...] = ()

    @field_validator("environment", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return {key: str(item) for key, item in value.items()} if isinstance(value, dict) else value

    @classmethod
    def load(cls, path: str | Path) -> Site:
        """Raises ValueError naming file, key and nearest valid key."""
        site = validate(cls, read_mapping(Path(path)), path)
        if site.warn_seconds >= 60 * site.time_limit_minutes:
            raise ValueError(
                f"{path}: warn_seconds: {site.warn_seconds} leaves nothing of the "
                f"{site.time_limit_minutes} minutes of time_limit_minutes"
            )
        return site

    # What jobs ask for

    def minutes(self, wanted: float) -> int:
        """Time of a job that would like `wanted` minutes: the site's limit is the most."""
        return max(1, min(math.ceil(wanted), self.time_limit_minutes))

    def shape(self, ranks: int) -> tuple[int, int]:
        """(nodes, GPUs a node) for `ranks` GPUs; raises ValueError when they don't fill whole nodes."""
        if self.gpus_per_node == 0:
            raise ValueError(f"the job needs {ranks} GPUs and the site states gpus_per_node: 0")
        if ranks <= self.gpus_per_node:
            return 1, ranks
        if ranks % self.gpus_per_node:
            raise ValueError(f"{ranks} GPUs don't fill nodes of {self.gpus_per_node} (gpus_per_node)")
        return ranks // self.gpus_per_node, self.gpus_per_node

    def job(self, device: Literal["cpu", "gpu"], *, nodes: int = 1) -> dict[str, Any]:
        """Snakemake resources that every job has: None is left out.

        `mpi` is empty on purpose: the plugin's job step then starts the rule's command itself, without a step of its
        own around it, while sbatch gets no wish for more than one task. So the launcher's srun is the only step, and
        signals to the steps reach the ranks and nothing else. `tasks_per_gpu` 0 keeps --ntasks-per-gpu away.
        """
        options = (self.sbatch_options, self.sbatch_options_multi_node if nodes > 1 else "")
        return {
            "slurm_partition": getattr(self.partition, device),
            "slurm_account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "mpi": "",
            "tasks_per_gpu": 0,
            "gres": "gpu:1" if device == "gpu" and self.gpus_per_node else None,
            # A requeued job writes on where it stopped.
            "slurm_extra": " ".join(filter(None, ("--open-mode=append", *options))),
        }

    # How a command gets its environment

    def srun_flags(self, folder: Path) -> list[str]:
        """Options of srun that belong to the site."""
        flags = list(self.srun_options)
        if self.container and self.container.tool == "pyxis":
            mounts = ",".join([f"{folder}:{folder}", *self.container.mounts])
            flags += [
                f"--container-image={self.container.image}",
                f"--container-mounts={mounts}",
                f"--container-workdir={folder}",
            ]
        return flags

    def inside(self, command: list[str], folder: Path) -> list[str]:
        """`command` in the container, where the tool is a command itself."""
        if self.container is None or self.container.tool != "apptainer":
            return command
        binds = [word for mount in (str(folder), *self.container.mounts) for word in ("--bind", mount)]
        gpus = ["--nv"] if self.gpus_per_node else []
        return ["apptainer", "exec", *gpus, *binds, "--pwd", str(folder), self.container.image, *command]

    def shell_lines(self) -> list[str]:
        """Lines that each rank's shell runs before its command."""
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return [*self.setup, *exports]
