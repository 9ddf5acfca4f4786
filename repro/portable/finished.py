"""The kept checkpoints of a trained run, as evaluation and measurements find and load them.

    results/<tier>/runs/<run>/<segment>/{run.yaml,done.json}    what was trained
    results/<tier>/state/<run_hash>/                            its checkpoints

A run's checkpoints lie in the states of its own segments; positions are tokens since the start of the lineage.
Not here: training, or what a checkpoint file looks like (repro.portable.checkpoint).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.experiments.errors import nearest
from repro.experiments.model import ModelSpec
from repro.models import LanguageModel, build_model
from repro.portable.checkpoint import load_at, model_weights
from repro.portable.frozen import load_frozen

log = logging.getLogger("repro.portable.finished")


@dataclass(frozen=True)
class CheckpointPoint:
    """A checkpoint to look at: where it lies and which model it belongs to.

    ``tokens`` counts from the start of the lineage, ``fraction`` is tokens / horizon.
    ``frozen`` is the content of the segment's run.yaml.
    """

    run: str
    tokens: int
    fraction: float
    state_dir: Path
    frozen: dict[str, Any]

    @property
    def model_spec(self) -> ModelSpec:
        return ModelSpec.model_validate(self.frozen["model"])


def run_checkpoints(results: Path, run: str) -> list[CheckpointPoint]:
    """All kept checkpoints of a finished run, by position.

    A run that diverged has those before its divergence. Raises ``ValueError`` naming the file when the run is
    unknown (with the nearest name), not frozen, frozen with a key that is missing or unknown, or not trained yet.
    """
    run_dir = results / "runs" / run
    if not run_dir.is_dir():
        known = [path.name for path in (results / "runs").glob("*") if path.is_dir()]
        raise ValueError(f"{run_dir}: no such run{nearest(run, known)}")
    segments = sorted((path for path in run_dir.iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    if not segments:
        raise ValueError(f"{run_dir}: holds no segment; freeze the run first")
    points: list[CheckpointPoint] = []
    for segment in segments:
        frozen = load_frozen(segment / "run.yaml", backend=None).content
        if points and (frozen["init_from"] or {}).get("run_hash") != points[-1].frozen["run_hash"]:
            log.info("%s: left over from an earlier plan of %s, not looked at", segment, run)
            break
        done = _read_done(segment / "done.json")
        if done["run_hash"] != frozen["run_hash"]:
            raise ValueError(f"{segment / 'done.json'}: belongs to another run.yaml; train the run again")
        schedule = frozen["schedule"]
        kept = {*frozen["checkpoints"]["keep_tokens"], schedule["end_tokens"]}
        # A diverged segment ends before its schedule does, without a checkpoint at its last step.
        reached = done["end_tokens"] if done["status"] == "completed" else done["end_tokens"] - 1
        points += [
            CheckpointPoint(
                run=run,
                tokens=tokens,
                fraction=tokens / schedule["horizon_tokens"],
                state_dir=results / "state" / frozen["run_hash"],
                frozen=frozen,
            )
            for tokens in sorted(kept)
            if schedule["start_tokens"] < tokens <= reached
        ]
    return points


def choose(points: Sequence[CheckpointPoint], tokens: Iterable[int]) -> list[CheckpointPoint]:
    """The checkpoints at these positions; one that a diverged run never reached is left out and logged.

    Raises ``ValueError`` naming the position when a run that trained past it did not keep it.
    """
    kept = {point.tokens: point for point in points}
    chosen = []
    for wanted in sorted(tokens):
        if wanted in kept:
            chosen.append(kept[wanted])
        elif kept and wanted < max(kept):
            run = points[0].run
            raise ValueError(
                f"{run}: trained without keeping a checkpoint at {wanted} tokens; kept: {sorted(kept)}"
            )
        else:
            log.warning("no checkpoint at %d tokens: the run diverged before", wanted)
    return chosen


def load_model(point: CheckpointPoint) -> LanguageModel:
    """The run's model in FP32 on the CPU with the checkpoint's weights, in evaluation mode.

    Raises ``ValueError`` naming the file when the checkpoint is missing, truncated or of another model.
    """
    tensors, _ = load_at(point.state_dir, point.tokens)
    model = build_model(point.model_spec)
    try:
        model.load_state_dict(model_weights(tensors), strict=True)
    except RuntimeError as error:
        raise ValueError(
            f"{point.state_dir}: checkpoint at {point.tokens} tokens does not fit: {error}"
        ) from error
    return model.eval()


def _read_done(path: Path) -> dict[str, Any]:
    """The record of a finished segment; ``ValueError`` that names the file when there is none."""
    try:
        done = json.loads(path.read_text(encoding="utf-8"))
        if missing := [key for key in ("run_hash", "status", "end_tokens") if key not in done]:
            raise ValueError(f"missing {', '.join(missing)}")
        return done
    except FileNotFoundError:
        raise ValueError(f"{path}: missing; train the run first") from None
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: truncated or not readable ({error}); remove it, and the run's training writes it again"
        ) from error
