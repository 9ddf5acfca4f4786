"""A frozen segment for the cluster backend: the same file and record as the portable trainer's, read for Megatron.

Positions in Megatron are iterations; all token positions of a frozen run are whole steps. Not here: what is checked
of the model and the machine (repro.cluster.layout, repro.cluster.stack). Reads no torch.
"""

from __future__ import annotations

from pathlib import Path

from repro.experiments.errors import read_mapping, validate
from repro.experiments.model import ModelSpec
from repro.experiments.recipe import Recipe
from repro.portable.frozen import FrozenSegment

_SECTIONS = ("model", "recipe", "schedule", "optimizer", "data", "validation", "checkpoints", "divergence")
_KEYS = ("run", "segment", "tier", "run_hash", "seed", "init_from", *_SECTIONS)


def load_segment(path: Path) -> FrozenSegment:
    """Reads a frozen run.yaml of any tier that is meant for this backend.

    Raises ValueError naming file and key when it is missing, damaged, incomplete or meant for the other backend.
    """
    content = read_mapping(path)
    missing = [key for key in _KEYS if key not in content]
    if missing:
        raise ValueError(f"{path}: missing {', '.join(missing)}")
    if content.get("backend") != "cluster":
        raise ValueError(
            f"{path}: backend is {content.get('backend')!r}, not 'cluster'; train it with python -m repro.portable, "
            "or say `backend: cluster` in its tier's file"
        )
    return segment_of(content, path)


def segment_of(content: dict, path: Path) -> FrozenSegment:
    """A frozen content as the record; `path` only tells where it comes from."""
    segment = FrozenSegment(
        path=path,
        content=content,
        model=validate(ModelSpec, content["model"], f"{path}: model"),
        recipe=validate(Recipe, content["recipe"], f"{path}: recipe"),
    )
    schedule = segment.schedule
    for key in ("horizon_tokens", "start_tokens", "end_tokens", "warmup_tokens", "decay_start_tokens"):
        if schedule[key] % segment.step_tokens:
            raise ValueError(
                f"{path}: schedule.{key} = {schedule[key]} is no multiple of a step ({segment.step_tokens})"
            )
    return segment
