"""What configs/campaign/<tier>.yaml may say, as validated records.

Not here: whether the runs that it names exist (repro.campaign.leases asks the tier's plan).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from repro.experiments.errors import read_mapping, validate
from repro.experiments.record import Record


class MachineEntry(Record):
    """GPUs and how they are shared (repro.campaign.machine)."""

    device: Literal["cuda", "cpu"] = "cuda"
    gpus: PositiveInt = 1
    per_gpu: PositiveInt = Field(1, description="runs that share a GPU")
    threads: PositiveInt = 4


class RatesEntry(Record):
    """What is assumed of a task's time until something is measured (repro.campaign.rates)."""

    tokens_per_second: dict[str, PositiveFloat] = Field(description="of a GPU, by family and format")
    start_seconds: NonNegativeFloat
    evaluate_seconds: NonNegativeFloat
    measure_seconds: NonNegativeFloat
    sharing: dict[PositiveInt, PositiveFloat] = Field(
        default_factory=dict, description="runs on a GPU -> its total over that of one run alone"
    )
    safety: Annotated[float, Field(ge=1.0)] = 1.1


class LeaseEntry(Record):
    """One lease: the runs of the tier's sweep, or `runs` and, if time is left, `then`."""

    about: str = ""
    sweep: bool = False
    runs: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = Field((), description="of these, those whose checkpoints are evaluated")
    measure: tuple[str, ...] = Field((), description="of these, those whose mechanisms are measured")
    per_gpu: PositiveInt | None = Field(None, description="instead of the machine's")

    @model_validator(mode="after")
    def _runs_are_told_once(self) -> LeaseEntry:
        if self.sweep == bool(self.runs):
            raise ValueError("a lease has either `sweep: true` or `runs`")
        for key in ("evaluate", "measure"):
            for run in getattr(self, key):
                if run not in (*self.runs, *self.then):
                    raise ValueError(f"{key} names {run!r}, which is not among the runs of the lease")
        return self


class CampaignEntry(Record):
    """The whole file."""

    tier: str
    machine: MachineEntry = MachineEntry()
    minutes: PositiveFloat = Field(description="of training in a lease")
    rates: RatesEntry
    leases: dict[str, LeaseEntry]


def read_campaign(path: Path) -> CampaignEntry:
    """The file at `path`. Raises ValueError naming the file and the key, in one line."""
    return validate(CampaignEntry, read_mapping(path), path)
