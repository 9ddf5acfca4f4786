"""One run as it was trained: the frozen segments of its lineage, their metrics and how they ended.

A run is a chain of segments; a fork's chain begins in its parent (``init_from``), so the curve of an ablation
continues its parent's: tokens count from the start of the lineage. A missing, truncated or inconsistent file is a
``ValueError`` that names it. Does not: find the segments (repro.analysis.results), smooth, pair, judge or draw.
"""

from __future__ import annotations

import json
import math
import re
import sys
from array import array
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# Seed replicas carry their original's name and the number of the seed: 12b_nvfp4_seed2.
_REPLICA = re.compile(r"(?P<original>.+)_seed(?P<number>\d+)$")


def replica_of(run: str) -> tuple[str, int]:
    """(original, number of the seed) of a run's name; an original is its own replica number 1."""
    found = _REPLICA.match(run)
    return (found["original"], int(found["number"])) if found else (run, 1)


@dataclass(frozen=True)
class Segment:
    """One folder runs/<run>/<n>: the frozen run.yaml and, once trained, done.json."""

    folder: Path
    frozen: dict[str, Any]

    @property
    def init_from(self) -> dict[str, Any] | None:
        return self.frozen.get("init_from")

    @cached_property
    def done(self) -> dict[str, Any]:
        """done.json. Raises ValueError when it is missing, cut off, or belongs to another frozen run."""
        done = read_json(self.folder / "done.json", "training writes it when a segment ends")
        if done.get("run_hash") != self.frozen["run_hash"]:
            raise ValueError(
                f"{self.folder / 'done.json'}: run_hash {done.get('run_hash')} is not that of run.yaml "
                f"({self.frozen['run_hash']}): the run changed after it was trained; train it again"
            )
        return done

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """kind, tokens and loss (NaN: none, or not finite) of metrics.jsonl in file order.

        Nothing else of a line is kept, as one segment of the paper tier has 1.7 million. Raises ValueError when the
        file is missing, empty, or cut off in mid-line.
        """
        path = self.folder / "metrics.jsonl"
        kinds, tokens, losses = [], array("q"), array("d")
        try:
            with path.open(encoding="utf-8") as lines:
                for line in lines:
                    record = json.loads(line)
                    loss = record.get("loss")
                    kinds.append(sys.intern(record["kind"]))
                    tokens.append(record["tokens"])
                    losses.append(math.nan if loss is None else loss)
        except FileNotFoundError:
            raise ValueError(f"{path}: missing; training writes it when a segment ends") from None
        except json.JSONDecodeError:
            raise ValueError(
                f"{path}: line {len(kinds) + 1} is no complete JSON object; the file is cut off"
            ) from None
        if not kinds:
            raise ValueError(f"{path}: empty; train the segment again")
        ended = tokens[-1]
        if ended != self.done["end_tokens"]:
            raise ValueError(
                f"{path}: ends at {ended} tokens but done.json says {self.done['end_tokens']}; the file is cut off"
            )
        return pd.DataFrame({"kind": kinds, "tokens": np.array(tokens), "loss": np.array(losses)})


@dataclass(frozen=True)
class Run:
    """One run with its lineage, oldest segment first; stops at the segment in which it diverged."""

    name: str
    lineage: tuple[Segment, ...]

    @property
    def last(self) -> Segment:
        return self.lineage[-1]

    @property
    def frozen(self) -> dict[str, Any]:
        """run.yaml of the last segment: its recipe is the one that the run ends with."""
        return self.last.frozen

    @property
    def own_start_tokens(self) -> int:
        """Tokens at which the run leaves its parent; 0 for a run that was trained from the start."""
        own = [segment for segment in self.lineage if segment.frozen["run"] == self.name]
        return own[0].frozen["schedule"]["start_tokens"] if own else self.last.done["end_tokens"]

    @property
    def horizon_tokens(self) -> int:
        return self.frozen["schedule"]["horizon_tokens"]

    @property
    def diverged_tokens(self) -> int | None:
        """Tokens at which the run (or the parent before the fork) diverged; None for a run that ended well."""
        return self.last.done["end_tokens"] if self.last.done["status"] == "diverged" else None

    def curve(self, kind: str) -> pd.DataFrame:
        """The "train" or "validation" loss along the whole lineage.

        Returns columns tokens (int, of the lineage), fraction (of this run's horizon) and loss (nats a token; NaN
        where it was not finite), one row a logged point, parents' rows up to the fork included. No rows for a run
        that diverged before it logged one.
        """
        assert kind in ("train", "validation"), kind
        parts = []
        for i, segment in enumerate(self.lineage):
            rows = segment.metrics.query("kind == @kind")
            if i + 1 < len(self.lineage):
                rows = rows[rows["tokens"] <= _fork_tokens(self.lineage[i + 1])]
            if i:
                rows = rows[rows["tokens"] > _fork_tokens(segment)]
            parts.append(rows)
        curve = pd.concat(parts, ignore_index=True)
        if curve.empty and self.diverged_tokens is None:
            raise ValueError(f"{self.last.folder / 'metrics.jsonl'}: no {kind} loss in it or its parents")
        tokens, loss = curve["tokens"], curve["loss"]
        return pd.DataFrame({"tokens": tokens, "fraction": tokens / self.horizon_tokens, "loss": loss})

    def meta(self) -> dict[str, Any]:
        """What every recorded row carries: where the number comes from and how large the run was."""
        done, provenance = self.last.done, self.last.done["provenance"]
        versions = provenance.get("versions", {})
        return {
            "tier": self.frozen["tier"],
            "status": done["status"],
            "end_tokens": done["end_tokens"],
            "horizon_tokens": self.horizon_tokens,
            "num_parameters": done["num_parameters"],
            "seed": self.frozen["seed"],
            "run_hash": self.frozen["run_hash"],
            "git_commit": short_commit(str(provenance["git_commit"])),
            "device": provenance["device"],
            "torch": versions.get("torch", "unknown"),
            # Absent from older records, and where a run uses neither.
            "triton": versions.get("triton", "not recorded"),
            "mamba_ssm": versions.get("mamba-ssm", "not recorded"),
            "seconds": round(sum(segment.done["provenance"]["seconds"] for segment in self.lineage), 1),
        }


def short_commit(commit: str) -> str:
    """The first 12 digits of a commit, and "+changes" where the checkout had some."""
    digits, plus, changes = commit.partition("+")
    return f"{digits[:12]}{plus}{changes}"


def _fork_tokens(segment: Segment) -> int:
    return segment.frozen["schedule"]["start_tokens"]


def read_text(path: Path, hint: str) -> str:
    """The text of a result file; raises ValueError with `hint` when there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: missing; {hint}") from None


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """The content of a JSON file; raises ValueError when it is missing (with `hint`) or cut off."""
    try:
        return json.loads(read_text(path, hint))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not complete JSON ({error}); the file is cut off") from None
