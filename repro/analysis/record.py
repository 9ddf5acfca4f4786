"""One trained segment as a record small enough to keep in the repository, and the record as a segment's files again.

A record is a JSON object:

    run, segment, run_hash        which frozen segment; the hash names its whole configuration
    done                          done.json as training wrote it: status, provenance, precision by layer
    train                         {step: first step, tokens: first position, step_tokens, loss: [...],
                                  grad_norm: [...]}: every step; older records lack grad_norm
    validation                    [{step, tokens, loss, loss_by_category}, ...]: every validation
    events                        the other lines of metrics.jsonl, e.g. a divergence

Losses keep six decimals, gradient norms four digits; rates and times of single steps are left out. `write_record`
stores it as .json.xz (tens of kB a run), `restore` writes metrics.jsonl and done.json beside a frozen run.yaml, so
that everything that reads results reads recorded ones too.

Does not: judge whether a record is stale (repro.analysis.recorded), or import pandas: it runs where training runs.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

Record = dict[str, Any]
SUFFIX = ".json.xz"
#: In a results folder made from records: which segments are recorded, and which records are stale.
MARK = "recorded.json"
_DECIMALS = 6
_PARTS = ("run", "segment", "run_hash", "done", "train", "validation", "events")


def record_segment(folder: Path) -> Record:
    """The record of a finished segment's folder (metrics.jsonl and done.json).

    Raises:
        ValueError: a file is missing or cut off, or training steps are missing between two lines.
    """
    try:
        done = json.loads((folder / "done.json").read_text(encoding="utf-8"))
        lines = [
            json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: no finished segment ({error})") from None
    steps = [line for line in lines if line["kind"] == "train"]
    train: Record = {"step": 0, "tokens": 0, "step_tokens": 0, "loss": []}
    if steps:
        step_tokens = steps[0]["tokens"] // steps[0]["step"]
        train = {
            "step": steps[0]["step"],
            "tokens": steps[0]["tokens"],
            "step_tokens": step_tokens,
            "loss": [_rounded(line["loss"]) for line in steps],
        }
        if all("grad_norm" in line for line in steps):
            train["grad_norm"] = [_significant(line["grad_norm"]) for line in steps]
        if [line["step"] for line in steps] != list(range(train["step"], train["step"] + len(steps))):
            raise ValueError(
                f"{folder / 'metrics.jsonl'}: steps are missing or doubled; train the segment again"
            )
    validation = [
        {
            "step": line["step"],
            "tokens": line["tokens"],
            "loss": _rounded(line["loss"]),
            "loss_by_category": {k: _rounded(v) for k, v in line["loss_by_category"].items()},
        }
        for line in lines
        if line["kind"] == "validation"
    ]
    return {
        "run": done["run"],
        "segment": done["segment"],
        "run_hash": done["run_hash"],
        "done": done,
        "train": train,
        "validation": validation,
        "events": [line for line in lines if line["kind"] not in ("train", "validation")],
    }


def restore(record: Record, folder: Path) -> None:
    """Write `folder`/metrics.jsonl and done.json; the lines stand in order of tokens, training before validation."""
    train = record["train"]
    lines: list[Record] = [
        {
            "kind": "train",
            "step": train["step"] + index,
            "tokens": train["tokens"] + index * train["step_tokens"],
            "loss": loss,
        }
        for index, loss in enumerate(train["loss"])
    ]
    for line, norm in zip(lines, train.get("grad_norm", ()), strict=False):
        line["grad_norm"] = norm
    lines += [{"kind": "validation", **line} for line in record["validation"]]
    order = {"train": 0, "validation": 1}
    lines += record["events"]
    lines.sort(key=lambda line: (line["tokens"], order.get(line["kind"], 2)))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    (folder / "done.json").write_text(json.dumps(record["done"], indent=1), encoding="utf-8")


def write_record(record: Record, path: Path) -> None:
    """Store a record; the bytes depend on the record alone."""
    text = json.dumps(record, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.writing")
    temporary.write_bytes(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))
    temporary.replace(path)


def read_record(path: Path) -> Record:
    """A stored record. Raises ValueError naming the file when it is damaged or lacks a part."""
    try:
        record = json.loads(lzma.decompress(path.read_bytes()))
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise ValueError(f"{path}: no readable record ({error})") from None
    missing = [key for key in _PARTS if not isinstance(record, dict) or key not in record]
    if missing:
        raise ValueError(f"{path}: no record of a segment; missing {', '.join(missing)}")
    return record


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DECIMALS)


def _significant(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
