"""A frozen segment (run.yaml) as both training backends, a campaign and what looks at checkpoints see it.

A segment is the part of a run between two fork points or precision switches; its file carries
everything that influences the numbers, so a trainer reads nothing else from configs/. Not here: making frozen runs
(repro.experiments.freeze). Reads no torch: a campaign plans without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.experiments.content import run_hash_of
from repro.experiments.errors import nearest, read_mapping, validate
from repro.experiments.model import ModelSpec
from repro.experiments.recipe import Recipe
from repro.experiments.sections import check_sections

_SECTIONS = ("model", "recipe", "schedule", "optimizer", "data", "validation", "checkpoints", "divergence")
_NEEDED = ("run", "segment", "tier", "family", "run_hash", "seed", "init_from", *_SECTIONS)
# What no trainer reads, and the backend, which is the portable one where none is named.
_OTHERS = ("schema", "backend")


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


def load_frozen(path: Path, *, backend: str | None = "portable") -> FrozenSegment:
    """Reads and checks a frozen run.yaml that is meant for `backend` (None: for either).

    Raises ValueError naming the file and the key when the file is missing, unreadable, incomplete, meant for
    another backend, not aligned to whole steps, has an unknown key, at the top or inside a section, or does not fit
    its run_hash.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such frozen run; `snakemake` writes it, or `repro freeze`")
    content = read_mapping(path)
    known = (*_NEEDED, *_OTHERS)
    wrong = [f"unknown key {key!r}{nearest(key, known)}" for key in content if key not in known]
    if missing := [key for key in _NEEDED if key not in content]:
        wrong.append(f"missing {', '.join(missing)}")
    if wrong:
        raise ValueError(f"{path}: {'; '.join(wrong)}")
    if backend is not None and (found := content.get("backend", "portable")) != backend:
        raise ValueError(
            f"{path}: backend is {found!r}, not {backend!r}; train it with python -m repro.{found}, or say "
            f"`backend: {backend}` in its tier's file"
        )
    segment = segment_of(content, path)
    # Checkpoints and results lie under the hash: with another content they would be those of the run as frozen.
    if (fits := run_hash_of(content)) != content["run_hash"]:
        raise ValueError(
            f"{path}: run_hash is {content['run_hash']}, but what the file holds has {fits}: it was changed after it "
            "was frozen; change configs/ instead, and freeze again"
        )
    return segment


def segment_of(content: dict[str, Any], path: Path) -> FrozenSegment:
    """A frozen content as the record, checked; `path` only tells where it comes from. Raises ValueError."""
    check_sections(content, path)
    segment = FrozenSegment(
        path=path,
        content=content,
        model=validate(ModelSpec, content["model"], f"{path}: model"),
        recipe=validate(Recipe, content["recipe"], f"{path}: recipe"),
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
