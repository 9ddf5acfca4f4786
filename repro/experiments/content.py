"""The frozen content of one segment: everything that influences its numbers, and nothing else.

This is the record that the trainer reads from run.yaml. Labels, elements, claims, resources and prices stay out:
changing them must not re-train. `run_hash` covers the whole content, the parent's hash included, so that a change
reaches every fork below it.

Units: tokens count from the start of the run's lineage; losses are nats; learning rates are AdamW's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from repro.experiments.data_spec import DataSpec
from repro.experiments.derive import Derived
from repro.experiments.model import ModelSpec
from repro.experiments.schema import FamilySettings, Tier
from repro.experiments.sections import CheckpointsSection, Data, Schedule, Start, ValidationSection

SCHEMA = 1


class _Ended(Protocol):
    """The segment that another one continues."""

    run: str
    index: int
    end_tokens: int
    run_hash: str


def frozen_content(
    run: Derived,
    index: int,
    *,
    start_tokens: int,
    end_tokens: int,
    horizon_tokens: int,
    warmup_tokens: int,
    decay_start_tokens: int,
    validate_every_tokens: int,
    checkpoint_every_tokens: int,
    keep_tokens: Sequence[int],
    spec: Tier,
    settings: FamilySettings,
    model: ModelSpec,
    data: DataSpec,
    init_from: _Ended | None,
) -> dict[str, Any]:
    """The content of run.yaml in the order in which it is written; `run_hash` is the last but computed from the rest.

    A replica (another seed) also sees its samples in another order: the data seed moves with the run's.
    """
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "run": run.name,
        "segment": index,
        "tier": spec.tier,
        "family": run.family,
        "backend": spec.backend,
        "seed": run.seed,
        # Words about the model and the table of block counts stay out: the recipe carries the counts that apply.
        "model": {**model.model_dump(mode="json"), "bf16_blocks": {}, "keeps": "", "cannot_show": ""},
        "recipe": run.recipe.model_dump(mode="json"),
        "schedule": Schedule(
            horizon_tokens=horizon_tokens,
            start_tokens=start_tokens,
            end_tokens=end_tokens,
            sequence_length_tokens=settings.sequence_length_tokens,
            batch_sequences=settings.batch_sequences,
            micro_batch_sequences=settings.micro_batch_sequences,
            warmup_tokens=warmup_tokens,
            decay_start_tokens=decay_start_tokens,
            learning_rate_max=settings.learning_rate_max,
            learning_rate_min=settings.learning_rate_min,
            decay_shape=settings.decay_shape,
        ).model_dump(),
        "optimizer": settings.optimizer.model_dump(mode="json"),
        "data": Data(
            name=data.name,
            seed=data.seed + run.seed - spec.seed,
            phases=_phases(run, data, settings, horizon_tokens),
        ).model_dump(),
        "validation": ValidationSection(
            sequences=settings.validation.sequences, every_tokens=validate_every_tokens
        ).model_dump(),
        "checkpoints": CheckpointsSection(
            every_tokens=checkpoint_every_tokens,
            keep_last=settings.checkpoints.keep_last,
            keep_tokens=list(keep_tokens),
        ).model_dump(),
        "divergence": settings.divergence.model_dump(mode="json"),
        "init_from": None
        if init_from is None
        else Start(
            run=init_from.run,
            segment=init_from.index,
            run_hash=init_from.run_hash,
            tokens=init_from.end_tokens,
        ).model_dump(),
    }
    content["run_hash"] = run_hash_of(content)
    return content


def _phases(
    run: Derived, data: DataSpec, settings: FamilySettings, horizon_tokens: int
) -> list[dict[str, Any]]:
    """The blends of the run. Raises ValueError naming the run whose horizon is too short for them."""
    try:
        return data.phases_of_run(
            settings.blend, horizon_tokens=horizon_tokens, tokens_per_step=settings.step_tokens
        )
    except ValueError as error:
        raise ValueError(f"{run.where}: {error}") from None


def run_hash_of(content: Mapping[str, Any]) -> str:
    """First 16 hex digits of SHA-256 over the content without `run_hash`, keys sorted."""
    rest = {key: value for key, value in content.items() if key != "run_hash"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
