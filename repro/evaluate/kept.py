"""The file that keeps a model's scores, a benchmark at a time, and knows whose they are.

    {"MMLU": {"value": 0.77, "stderr": 0.003, "num_items": 14042, "model": SHA-256, "asked": SHA-256}, ...}

Another model's scores, or one that was made with other settings, are refused: they are hours of a node, and not asked
for here. Not here: scoring (repro.evaluate.folder), the answers of an unfinished benchmark (repro.evaluate.answers).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from repro.data.manifest import sha256_of
from repro.evaluate.harness import Score
from repro.evaluate.local_tasks import data_digest
from repro.evaluate.settings import EvalSettings
from repro.portable.metrics import write_whole

_MODEL_FILES = ("config.json", "*.safetensors", "*.bin", "tokenizer*", "vocab*", "merges.txt")

#: What a score does not depend on: how its task is named and stands in a table.
_OF_TABLES = {"name", "group", "chance", "stands_for", "in_group_mean"}


@dataclass(frozen=True)
class Owner:
    """What scores depend on, as digests: the model, and for each task, by name, how it is asked."""

    model: str
    asked: Mapping[str, str]
    of_answers: str

    @classmethod
    def of(cls, folder: Path, settings: EvalSettings, data_dir: Path) -> Owner:
        """The model by its files, not its path, which may hold another by now: they are read once more for it."""
        files = sorted({path for pattern in _MODEL_FILES for path in folder.glob(pattern)})
        model = _digest({path.name: sha256_of(path) for path in files} or str(folder.resolve()))
        computed = {
            **settings.model_dump(
                mode="json", include={"dtype", "engine", "batch_size", "max_length_tokens"}
            ),
            "versions": {name: version(name) for name in ("lm_eval", "torch", "transformers")},
        }
        asked = {
            task.name: _digest(
                [
                    computed,
                    task.model_dump(mode="json", exclude=_OF_TABLES),
                    data_digest(data_dir / task.data) if task.data else None,
                ]
            )
            for task in settings.tasks
        }
        return cls(model, asked, _digest([model, computed]))


def read_scores(path: Path, owner: Owner | None = None) -> dict[str, Score]:
    """What `path` keeps; nothing when it is missing or was cut off.

    Raises ``ValueError`` when it is not the owner's, where one is given, or no file of scores.
    """
    kept = _read(path)
    if owner:
        _refuse_others(path, kept, owner)
    return {name: Score(entry["value"], entry["stderr"], entry["num_items"]) for name, entry in kept.items()}


def _refuse_others(path: Path, kept: Mapping[str, Mapping[str, Any]], owner: Owner) -> None:
    for name, entry in kept.items():
        if entry.get("model") != owner.model:
            raise ValueError(f"{path}: keeps scores of another model; name another file or remove this one")
        if entry["asked"] != owner.asked.get(name, entry["asked"]):
            raise ValueError(
                f"{path}: keeps a score of {name} made with other settings; name another file or remove this one"
            )


def keep_scores(path: Path, scores: Mapping[str, Score], owner: Owner) -> None:
    """Adds the owner's scores to those that `path` keeps."""
    kept = _read(path)
    for name, score in scores.items():
        kept[name] = {**asdict(score), "model": owner.model, "asked": owner.asked[name]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(kept).encode())


def answers_folder(kept: Path, benchmark: str) -> Path:
    """Where the answers of one benchmark lie until its score is in ``kept``."""
    return kept.with_name(f"{kept.stem}.{quote(benchmark, safe='')}.answers")


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(kept, dict) or not all(
        isinstance(entry, dict) and "value" in entry for entry in kept.values()
    ):
        raise ValueError(f"{path}: not a file of scores; name another")
    return kept


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
