"""A frozen segment for megatron-core, which counts in iterations: every position of its schedule is a whole step.

Not here: the file and the record (repro.portable.frozen), what is checked of model and machine (repro.cluster.fit).
Reads no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from repro.portable import frozen
from repro.portable.frozen import FrozenSegment, load_frozen

_POSITIONS = ("horizon_tokens", "warmup_tokens", "decay_start_tokens")


def load_segment(path: Path) -> FrozenSegment:
    """Reads a frozen run.yaml that is meant for this backend.

    Raises ValueError naming file and key when it is missing, damaged, incomplete, meant for the other backend, or
    has a position between two steps.
    """
    return _in_whole_steps(load_frozen(path, backend="cluster"))


def segment_of(content: dict[str, Any], path: Path) -> FrozenSegment:
    """A frozen content as the record; `path` only tells where it comes from."""
    return _in_whole_steps(frozen.segment_of(content, path))


def _in_whole_steps(segment: FrozenSegment) -> FrozenSegment:
    for key in _POSITIONS:
        if segment.schedule[key] % segment.step_tokens:
            raise ValueError(
                f"{segment.path}: schedule.{key} = {segment.schedule[key]} is no multiple of a step "
                f"({segment.step_tokens})"
            )
    return segment
