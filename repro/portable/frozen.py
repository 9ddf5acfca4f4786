"""A frozen segment (run.yaml) as the trainer sees it.

Shape legend: none. A segment is the part of a run between two fork points or precision switches; its file carries
everything that influences the numbers, so the trainer reads nothing else from configs/. Not here: making frozen
runs (repro.experiments.freeze).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from repro.experiments.model import ModelSpec
from repro.experiments.recipe import Recipe

_SECTIONS = ("model", "recipe", "schedule", "optimizer", "data", "validation", "checkpoints", "divergence")
_KEYS = ("run", "segment", "tier", "run_hash", "seed", *_SECTIONS)


@dataclass(frozen=True)
class FrozenSegment:
    """One run.yaml, checked. Token positions count from the start of the run's lineage."""

    path: Path
    content: dict[str, Any]
    model: ModelSpec
    recipe: Recipe

    @property
    def name(self) -> str:
        """Run name and segment number, as the log shows them."""
        return f"{self.content['run']}[{self.content['segment']}]"

    @property
    def run_hash(self) -> str:
        return self.content["run_hash"]

    @property
    def schedule(self) -> dict[str, Any]:
        return self.content["schedule"]

    @property
    def step_tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.schedule["batch_sequences"] * self.schedule["sequence_length_tokens"]

    @property
    def kept_steps(self) -> set[int]:
        """Steps whose checkpoints stay for good: forks, evaluations and the segment's end."""
        tokens = {*self.content["checkpoints"]["keep_tokens"], self.schedule["end_tokens"]}
        return {position // self.step_tokens for position in tokens}

    @property
    def start_step(self) -> int:
        return self.schedule["start_tokens"] // self.step_tokens

    @property
    def end_step(self) -> int:
        return self.schedule["end_tokens"] // self.step_tokens


def load_frozen(path: Path) -> FrozenSegment:
    """Reads and checks a frozen run.yaml.

    Raises ValueError naming the file and the key when the file is missing, unreadable, incomplete, meant for
    another backend, or not aligned to whole steps.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such frozen run; `snakemake` writes it, or `repro freeze`")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not readable as YAML ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a mapping of sections, found {type(content).__name__}")
    missing = [key for key in _KEYS if key not in content]
    if missing:
        raise ValueError(f"{path}: missing {', '.join(missing)}")
    if content.get("backend", "portable") != "portable":
        raise ValueError(f'{path}: backend is "{content["backend"]}"; this trainer runs "portable" only')
    segment = FrozenSegment(
        path=path,
        content=content,
        model=ModelSpec.model_validate(content["model"]),
        recipe=Recipe.model_validate(content["recipe"]),
    )
    schedule = segment.schedule
    for key in ("start_tokens", "end_tokens"):
        if schedule[key] % segment.step_tokens:
            raise ValueError(
                f"{path}: schedule.{key} = {schedule[key]} is no multiple of {segment.step_tokens}"
            )
    if not schedule["start_tokens"] < schedule["end_tokens"] <= schedule["horizon_tokens"]:
        raise ValueError(
            f"{path}: needs start_tokens < end_tokens <= horizon_tokens, has {schedule['start_tokens']}, "
            f"{schedule['end_tokens']}, {schedule['horizon_tokens']}"
        )
    if schedule["batch_sequences"] % schedule["micro_batch_sequences"]:
        raise ValueError(
            f"{path}: schedule.batch_sequences = {schedule['batch_sequences']} is no multiple of "
            f"schedule.micro_batch_sequences = {schedule['micro_batch_sequences']}"
        )
    return segment
