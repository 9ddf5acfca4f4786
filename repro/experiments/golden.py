"""The resolved text of a run, one `key: value` a line, kept in git so that a review sees what a change really does.

One file a run and tier: tests/experiments/golden/<tier>/<run>.txt. What all segments share stands once; what differs
follows under `segment.<n>`. Hashes are left out (they say that something changed, the lines above say what), and so
are labels, which change no number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from repro.experiments.plan import Plan
from repro.experiments.run import Run

GOLDEN_DIR = Path("tests/experiments/golden")


def flatten(content: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of nested mappings and lists as (dotted key, JSON value), in the order in which they stand."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(content, list) and content and isinstance(content[0], Mapping):
        for index, value in enumerate(content):
            yield from flatten(value, f"{prefix}[{index}]")
    else:
        yield prefix, json.dumps(content, ensure_ascii=False)


def resolved(run: Run) -> dict[str, str]:
    """Flat key -> value of everything that the run's segments were frozen from, hashes apart."""
    segments = [dict(flatten(_without_hashes(segment.frozen))) for segment in run.segments]
    shared = {
        key: value for key, value in segments[0].items() if all(other.get(key) == value for other in segments)
    }
    flat = dict(shared)
    for segment, content in zip(run.segments, segments, strict=True):
        own = {key: value for key, value in content.items() if key not in shared and key != "segment"}
        flat.update({f"segment.{segment.index}.{key}": value for key, value in own.items()})
    return flat


def overall(run: Run) -> dict[str, str]:
    """Flat key -> value of the run as one piece, from its first token to its last: for comparing two runs."""
    first, last = run.segments[0].frozen, run.segments[-1].frozen
    content = _without_hashes(last)
    content["schedule"] = {**last["schedule"], "start_tokens": run.start_tokens}
    content["init_from"] = _without_hashes(first)["init_from"]
    # Where states are kept depends on who else forks from the run; its numbers don't.
    content["checkpoints"] = {k: v for k, v in last["checkpoints"].items() if k != "keep_tokens"}
    del content["run"], content["segment"]
    return dict(flatten(content))


def golden_text(run: Run) -> str:
    """The golden file of one run."""
    return "".join(f"{key}: {value}\n" for key, value in resolved(run).items())


def write_golden(plan: Plan, folder: Path = GOLDEN_DIR) -> tuple[list[Path], list[Path]]:
    """Renews folder/<tier>; returns (files written because they differed, files removed because no run is theirs)."""
    target = folder / plan.tier
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, run in plan.runs.items():
        path, text = target / f"{name}.txt", golden_text(run)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            written.append(path)
    removed = [path for path in sorted(target.glob("*.txt")) if path.stem not in plan.runs]
    for path in removed:
        path.unlink()
    return written, removed


def _without_hashes(content: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in content.items() if key != "run_hash"}
    if rest.get("init_from"):
        rest["init_from"] = {key: value for key, value in rest["init_from"].items() if key != "run_hash"}
    return rest
