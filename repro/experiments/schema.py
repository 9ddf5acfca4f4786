"""What configs/tiers/*.yaml and configs/experiments/*.yaml may say, as validated records.

An experiment file holds runs. A run is told by where it differs: from a recipe (`base`), from another run
(`parent`, with or without a fork point), or by its seed alone (`replica_of`). Time is a fraction of the family's
horizon everywhere, so that one file serves every tier: 3.43T of the paper's 10T is `fork_at: 0.343`.

A tier file turns fractions into tokens: horizon, batch, learning rate, machine. Keys of `common` hold for every
family and give way to the family's own.

Not here: how runs derive from each other (repro.experiments.derive), recipes, models, data.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from repro.experiments.common import spread_common
from repro.experiments.model import Bf16Blocks
from repro.experiments.record import Record

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
# 300 for 3.0e-4 would train, and diverge; no learning rate of AdamW is above 1.
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]
# 210 for 2.1e+14 would price a run at a million million times its hours; no device is outside these.
FlopsPerSecond = Annotated[float, Field(ge=1.0e6, le=1.0e18)]
# Tokens in the place of a factor would plan a run that never ends; the paper's longest is 1.5 times its family's.
HorizonFactor = Annotated[float, Field(gt=0.0, le=10.0)]
Family = Literal["12b", "8b", "1p2b"]
_RUN_NAME = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")


class RunEntry(Record):
    """One run as its file tells it: exactly one of `base`, `parent`, `replica_of`, and what differs from it."""

    base: str | None = Field(None, description="a recipe of configs/recipes, trained from the start")
    parent: str | None = Field(
        None, description="a run whose recipe, blocks and horizon this one starts from"
    )
    replica_of: str | None = Field(None, description="the same run again with another seed")
    fork_at: Annotated[float, Field(ge=0.0)] | None = Field(
        None, description="take the parent's state here; null: from the start"
    )
    end_at: PositiveFloat = Field(1.0, description="stop here, as a fraction of this run's horizon")
    horizon: HorizonFactor | None = Field(None, description="times the family's horizon; null: as the parent")
    recipe: str | None = Field(None, description="of a child: swap the parent's recipe for this one")
    bf16_blocks: str | Bf16Blocks | None = Field(
        None, description="a key of the model's bf16_blocks, or counts"
    )
    changes: dict[str, Any] = Field(default_factory=dict, description="dotted recipe key -> value")
    seed: PositiveInt | None = Field(None, description="of a replica")
    label: str | None = Field(None, description="series name in figures and lists; never re-trains")
    elements: tuple[str, ...] = Field((), description="figures and tables that need the run")
    claims: tuple[str, ...] = Field((), description="ids of configs/claims.yaml that rest on it")
    source: str | None = Field(None, description="where the paper describes it")
    note: str | None = Field(None, description="what was chosen where the paper is silent")

    @model_validator(mode="after")
    def _one_origin(self) -> RunEntry:
        origins = [name for name in ("base", "parent", "replica_of") if getattr(self, name) is not None]
        if len(origins) != 1:
            found = " and ".join(origins) or "none of them"
            raise ValueError(f"say exactly one of base, parent, replica_of (found {found})")
        if self.fork_at is not None and self.parent is None:
            raise ValueError("fork_at needs a parent to fork from")
        if self.fork_at == 0.0:
            raise ValueError(
                "fork_at: 0 is the start; leave fork_at out to train the parent's settings from there"
            )
        if self.fork_at is not None and self.horizon is not None:
            raise ValueError("horizon: a fork keeps its parent's schedule; leave horizon out")
        if self.recipe is not None and self.parent is None:
            raise ValueError("recipe: only a child swaps its parent's recipe; write base")
        if (self.replica_of is None) != (self.seed is None):
            raise ValueError("replica_of and seed belong together")
        if self.replica_of is not None and (
            self.changes or self.bf16_blocks or self.horizon or self.end_at != 1
        ):
            raise ValueError("a replica differs by its seed only; write parent for anything else")
        if self.base is not None and self.bf16_blocks is None:
            raise ValueError('bf16_blocks is missing; "none" quantises every linear layer')
        return self


class ExperimentFile(Record):
    """One file of configs/experiments: runs of one family that share a section of the paper."""

    title: str
    source: str
    family: Family
    runs: dict[str, RunEntry]

    @model_validator(mode="after")
    def _names(self) -> ExperimentFile:
        for name in self.runs:
            if not _RUN_NAME.fullmatch(name) or not name.startswith(f"{self.family}_"):
                raise ValueError(
                    f"runs: {name!r} is no run name; lower-case words joined by _, starting with {self.family}_"
                )
            if re.search(r"_seed\d+$", name):
                raise ValueError(
                    f"runs: {name!r}: names that end in _seed<number> are made by `replicas` of a tier"
                )
        return self


class Optimizer(Record):
    """AdamW, as Appendix A of the paper states it."""

    name: Literal["adamw"]
    beta1: Annotated[float, Field(gt=0, lt=1)]
    beta2: Annotated[float, Field(gt=0, lt=1)]
    eps: Annotated[float, Field(gt=0, le=1)]
    # A step keeps 1 - learning rate x decay of a weight: with both at most 1 never less than nothing.
    weight_decay: Annotated[float, Field(ge=0, le=1)]
    clip_grad_norm: PositiveFloat


class Validation(Record):
    """Validation loss on a fixed set of `sequences`, `every` this fraction of the horizon."""

    sequences: PositiveInt
    every: Annotated[float, Field(gt=0, le=1)]


class Checkpoints(Record):
    """For resuming; fork points and evaluated checkpoints are kept besides."""

    every: Annotated[float, Field(gt=0, le=1)]
    keep_last: PositiveInt


class Divergence(Record):
    """A run is diverged when the mean training loss of `window_steps` lies `rise_nats` above the lowest before."""

    window_steps: PositiveInt
    rise_nats: PositiveFloat


class Resources(Record):
    """What one segment's job asks for."""

    threads: PositiveInt
    gpus_per_node: Annotated[int, Field(ge=0)]
    nodes: PositiveInt
    memory_gb: PositiveFloat
    minutes: PositiveInt


class FamilySettings(Record):
    """One model family at one tier; positions are fractions of `horizon_tokens`, learning rates absolute."""

    horizon_tokens: PositiveInt
    sequence_length_tokens: PositiveInt
    batch_sequences: PositiveInt
    micro_batch_sequences: PositiveInt
    warmup: Fraction
    decay_start: Fraction
    decay_shape: Literal["linear", "cosine", "minus_sqrt"]
    learning_rate_max: LearningRate
    learning_rate_min: LearningRate
    blend: str = Field(description="a key of `blends` of the data configuration")
    optimizer: Optimizer
    validation: Validation
    checkpoints: Checkpoints
    divergence: Divergence
    resources: Resources

    @model_validator(mode="after")
    def _order(self) -> FamilySettings:
        if not self.warmup <= self.decay_start:
            raise ValueError(f"warmup {self.warmup} ends after decay_start {self.decay_start}")
        if self.learning_rate_min > self.learning_rate_max:
            raise ValueError(
                f"learning_rate_min {self.learning_rate_min} is above learning_rate_max {self.learning_rate_max}"
            )
        if self.batch_sequences % self.micro_batch_sequences:
            raise ValueError(
                f"batch_sequences {self.batch_sequences} is no multiple of "
                f"micro_batch_sequences {self.micro_batch_sequences}"
            )
        return self

    @property
    def step_tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.batch_sequences * self.sequence_length_tokens


class CostRates(Record):
    """Assumptions of the cost plan; printed beside every hour it states."""

    device: str
    flops_per_second: dict[str, FlopsPerSecond] = Field(description="sustained, per device, by format")
    state_bytes_per_parameter: PositiveInt = Field(description="of one checkpoint")
    source: str


class Sweep(Record):
    """BF16 runs of the families over these learning rates, to choose each one's (repro.experiments.sweep)."""

    horizon_tokens: PositiveInt
    learning_rates: dict[Family, Annotated[tuple[LearningRate, ...], Field(min_length=2)]]


class Tier(Record):
    """One file of configs/tiers."""

    tier: str
    backend: Literal["portable", "cluster"]
    data: str = Field(description="configs/data/<data>.yaml")
    seed: PositiveInt
    shows: str
    cannot_show: str
    replicas: dict[str, tuple[PositiveInt, ...]] = Field(
        default_factory=dict, description="run -> further seeds"
    )
    evaluate_at: dict[str, tuple[Fraction, ...]] = Field(
        default_factory=dict, description="run -> fractions of its horizon whose checkpoints are evaluated"
    )
    measure_at: dict[str, tuple[Fraction, ...]] = Field(
        default_factory=dict, description="run -> fractions whose checkpoints the mechanisms are measured at"
    )
    sweep: Sweep | None = None
    cost: CostRates
    families: dict[Family, FamilySettings]

    @model_validator(mode="before")
    @classmethod
    def _spread_common(cls, content: Any) -> Any:
        """`common` under every family; the family's own keys win, key by key also inside a section."""
        if not isinstance(content, dict) or not isinstance(content.get("families"), dict):
            return content
        return spread_common(content)

    @model_validator(mode="after")
    def _every_gpu_has_work(self) -> Tier:
        """Of the portable backend; the cluster's depends on its layout."""
        for family, settings in self.families.items() if self.backend == "portable" else ():
            gpus = settings.resources.nodes * settings.resources.gpus_per_node
            micro_batches = settings.batch_sequences // settings.micro_batch_sequences
            if gpus and micro_batches % gpus:
                raise ValueError(
                    f"families.{family}: resources ask for {gpus} GPUs, which cannot share the {micro_batches} micro "
                    f"batches of a step (batch_sequences {settings.batch_sequences}, micro_batch_sequences "
                    f"{settings.micro_batch_sequences})"
                )
        return self
