"""Writes frozen runs: results/<tier>/runs/<run>/<segment>/run.yaml, the train job's only input besides the data.

The text is a pure function of configs/. A file is touched only when its content differs, then replaced in one step,
so that an unchanged run keeps its file and is never trained again. Called whenever the workflow is read, hence fast.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from repro.experiments.plan import Plan

_HEADER = "# Frozen from configs/ (repro.experiments.freeze). Change the experiment, not this file.\n"
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _PlainDumper(_Dumper):
    """Repeats a shared section instead of writing an anchor."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def frozen_text(content: Mapping[str, Any]) -> str:
    """The text of run.yaml, the same for the same content on every machine."""
    body = yaml.dump(dict(content), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=110)
    return _HEADER + body


def freeze_all(plan: Plan, results_dir: str | Path) -> list[Path]:
    """Writes the run.yaml of every segment of `plan`, its sweep included, below `results_dir` (results/<tier>).

    Returns the files that were new or differed; the second call returns an empty list. Files of runs that are no
    longer planned are left alone: their results may still be wanted. Raises OSError; the file before then stays.
    """
    results_dir = Path(results_dir)
    written = []
    sweep = (segment for run in plan.sweep.values() for segment in run.segments)
    for segment in (*plan.segments, *sweep):
        path = results_dir / segment.folder / "run.yaml"
        if _replace_if_different(path, frozen_text(segment.frozen)):
            written.append(path)
    return written


def _replace_if_different(path: Path, text: str) -> bool:
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:  # of a full disk it names no file
        raise OSError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)
    return True
