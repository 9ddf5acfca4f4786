"""Reads what the other stages wrote below results/<tier>: runs, evaluations, mechanisms, bench.

A run is a chain of segments; a fork's chain begins in its parent (``init_from``), so the curve of an ablation
continues its parent's: tokens count from the start of the lineage. Everything is read as it lies there; a missing,
truncated or inconsistent file is a ``ValueError`` that names it. Does not: smooth, pair, judge or draw.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from repro.analysis.record import MARK
from repro.experiments.model import ModelSpec, load_model_spec

# Seed replicas carry their original's name and the number of the seed: 12b_nvfp4_seed2.
_REPLICA = re.compile(r"(?P<original>.+)_seed(?P<number>\d+)$")

_EVALUATION_COLUMNS = ("run", "tokens", "fraction", "task", "group", "metric", "value", "stderr", "num_items")
_MECHANISM_COLUMNS = (
    "run", "tokens", "fraction", "layer", "block", "gemm", "tensor", "quantity", "variant", "value",
)  # fmt: skip


class NotRecorded(ValueError):  # noqa: N818 - a state of the project, told as such
    """A result that no record in the repository holds; only in a folder made from records."""


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
        done = _read_json(self.folder / "done.json", "training writes it when a segment ends")
        if done.get("run_hash") != self.frozen["run_hash"]:
            raise ValueError(
                f"{self.folder / 'done.json'}: run_hash {done.get('run_hash')} is not that of run.yaml "
                f"({self.frozen['run_hash']}): the run changed after it was trained; train it again"
            )
        return done

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """metrics.jsonl in file order. Raises ValueError when missing, empty, or cut off in mid-line."""
        path = self.folder / "metrics.jsonl"
        text = _read_text(path, "training writes it when a segment ends")
        records = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                raise ValueError(
                    f"{path}: line {number} is no complete JSON object; the file is cut off"
                ) from None
        if not records:
            raise ValueError(f"{path}: empty; train the segment again")
        ended = records[-1].get("tokens")
        if ended != self.done["end_tokens"]:
            raise ValueError(
                f"{path}: ends at {ended} tokens but done.json says {self.done['end_tokens']}; the file is cut off"
            )
        return pd.DataFrame(records)


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
        tokens = curve["tokens"].astype("int64")
        loss = pd.to_numeric(curve["loss"], errors="coerce").astype(float)
        return pd.DataFrame({"tokens": tokens, "fraction": tokens / self.horizon_tokens, "loss": loss})

    def meta(self) -> dict[str, Any]:
        """What every recorded row carries: where the number comes from and how large the run was."""
        done, provenance = self.last.done, self.last.done["provenance"]
        return {
            "tier": self.frozen["tier"],
            "status": done["status"],
            "end_tokens": done["end_tokens"],
            "horizon_tokens": self.horizon_tokens,
            "num_parameters": done["num_parameters"],
            "seed": self.frozen["seed"],
            "run_hash": self.frozen["run_hash"],
            "git_commit": str(provenance["git_commit"])[:12],
            "device": provenance["device"],
            "torch": provenance.get("versions", {}).get("torch", "unknown"),
            "seconds": round(sum(segment.done["provenance"]["seconds"] for segment in self.lineage), 1),
        }


class Results:
    """The folder results/<tier>, and the configs that tables and exact claims read beside it.

    A folder made from records (repro.analysis.recorded) may lack runs: `has` tells, and `missing` says why. In any
    other folder a missing file is an error.
    """

    def __init__(self, folder: str | Path, *, configs: str | Path = "configs") -> None:
        self.folder = Path(folder)
        self.configs = Path(configs)
        if not self.folder.is_dir():
            raise ValueError(f"{self.folder}: no such results folder; `snakemake` makes it")

    @cached_property
    def tier(self) -> str:
        """The tier that the frozen runs name; the folder's name while there are none."""
        names = self.run_names
        return self._segment(names[0], 0).frozen["tier"] if names else self.folder.resolve().name

    @cached_property
    def run_names(self) -> list[str]:
        """Names of all frozen runs, sorted."""
        return sorted(path.parent.parent.name for path in self.folder.glob("runs/*/0/run.yaml"))

    def run(self, name: str) -> Run:
        """One run with its lineage. Raises ValueError naming the file that is missing or does not fit."""
        if not self.has(name):
            raise NotRecorded(f"{name}: {self.missing(name)['status']}")
        return Run(name, tuple(self._ended(self._chain(name))))

    def _chain(self, name: str) -> list[Segment]:
        """All frozen segments of the lineage, oldest first."""
        chain: list[Segment] = [self._segment(name, self._last_segment(name))]
        while (previous := self._previous(chain[0])) is not None:
            if previous in chain:
                raise ValueError(f"{previous.folder / 'run.yaml'}: the run descends from itself")
            chain.insert(0, previous)
        return chain

    def _ended(self, chain: list[Segment]) -> list[Segment]:
        """The chain up to the segment that diverged; up to one without a record where there are records."""
        recorded = None if self._mark is None else set(self._mark["recorded"])
        for i, segment in enumerate(chain):
            if (
                recorded is not None
                and f"{segment.frozen['run']}/{segment.frozen['segment']}" not in recorded
            ):
                return chain[: i + 1]
            if segment.done["status"] == "diverged":
                return chain[: i + 1]
        return chain

    def replicas(self, run: str) -> list[str]:
        """Names of the runs that repeat `run` with another seed, sorted; of recorded ones those that are there."""
        found = [name for name in self.run_names if name != run and replica_of(name)[0] == run]
        return [name for name in found if self.has(name)]

    @cached_property
    def _mark(self) -> dict[str, Any] | None:
        path = self.folder / MARK
        return _read_json(path, "") if path.is_file() else None

    def has(self, name: str) -> bool:
        """Whether the run can be read: always in a folder of training, where `run` says what is wrong."""
        if self._mark is None:
            return True
        recorded = set(self._mark["recorded"])
        return all(
            f"{s.frozen['run']}/{s.frozen['segment']}" in recorded for s in self._ended(self._chain(name))
        )

    def missing(self, name: str) -> dict[str, Any]:
        """What is known of a run that is not recorded: the columns of Run.meta that its configuration fixes."""
        assert self._mark is not None, name
        frozen = self.frozen(name)
        stale = any(key.partition("/")[0] == name for key in self._mark["stale"])
        return {
            "tier": frozen["tier"],
            "status": "stale record" if stale else "not recorded",
            "horizon_tokens": frozen["schedule"]["horizon_tokens"],
            "seed": frozen["seed"],
            "run_hash": frozen["run_hash"],
        }

    def meta(self, name: str) -> dict[str, Any]:
        """Run.meta, or what is known of a run that is not recorded."""
        return self.run(name).meta() if self.has(name) else self.missing(name)

    def frozen(self, name: str) -> dict[str, Any]:
        """run.yaml of the run's last segment, trained or not."""
        return self._segment(name, self._last_segment(name)).frozen

    def evaluations(self, run: str) -> pd.DataFrame:
        """evaluations/<run>.csv: one row a checkpoint and task; value, stderr and chance as fractions of 1."""
        return self._table("evaluations", run, _EVALUATION_COLUMNS)

    def mechanisms(self, run: str) -> pd.DataFrame:
        """mechanisms/<run>.csv: one row a checkpoint, layer, quantity and variant."""
        return self._table("mechanisms", run, _MECHANISM_COLUMNS)

    def _table(self, kind: str, run: str, columns: tuple[str, ...]) -> pd.DataFrame:
        path = self.folder / kind / f"{run}.csv"
        if self._mark is not None and not path.is_file():
            raise NotRecorded(f"{kind} of {run}: not recorded")
        table = self._csv(path, columns)
        return table.drop(columns="run_hash", errors="ignore")

    def bench(self) -> dict[str, Any]:
        """bench/gemm.json as `repro bench` writes it: provenance and `rows`."""
        return _read_json(self.folder / "bench" / "gemm.json", "`repro bench` writes it")

    def model_spec(self, family: str, *, tier: str) -> ModelSpec:
        """configs/models/<tier>/<family>.yaml, validated."""
        return load_model_spec(self.configs / "models" / tier / f"{family}.yaml")

    def _last_segment(self, name: str) -> int:
        numbers = [int(path.parent.name) for path in self.folder.glob(f"runs/{name}/*/run.yaml")]
        if not numbers:
            near = difflib.get_close_matches(name, self.run_names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{self.folder / 'runs' / name}: no frozen run {name!r}{hint}")
        return max(numbers)

    def _segment(self, name: str, number: int) -> Segment:
        path = self.folder / "runs" / name / str(number) / "run.yaml"
        frozen = yaml.load(_read_text(path, "`snakemake` freezes it from configs/"), Loader=_YamlLoader)
        missing = [
            key for key in ("run", "run_hash", "tier", "schedule", "seed") if key not in (frozen or {})
        ]
        if missing:
            raise ValueError(f"{path}: cut off or no frozen run; missing {', '.join(missing)}")
        return Segment(path.parent, frozen)

    def _previous(self, segment: Segment) -> Segment | None:
        parent = segment.init_from
        if parent is None:
            number = int(segment.folder.name)
            return self._segment(segment.frozen["run"], number - 1) if number else None
        previous = self._segment(parent["run"], parent["segment"])
        if previous.frozen["run_hash"] != parent["run_hash"]:
            raise ValueError(
                f"{segment.folder / 'run.yaml'}: forks from {parent['run']}[{parent['segment']}] with run_hash "
                f"{parent['run_hash']}, but that run is now {previous.frozen['run_hash']}; freeze the runs again"
            )
        return previous

    @staticmethod
    def _csv(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
        text = _read_text(path, "an earlier stage of the workflow writes it")
        if not text.strip():
            raise ValueError(f"{path}: empty")
        table = pd.read_csv(path)
        missing = [column for column in columns if column not in table]
        if missing or table.empty:
            raise ValueError(f"{path}: " + (f"no column {', '.join(missing)}" if missing else "no rows"))
        return table


_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _fork_tokens(segment: Segment) -> int:
    return segment.frozen["schedule"]["start_tokens"]


def _read_text(path: Path, hint: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: missing; {hint}") from None


def _read_json(path: Path, hint: str) -> dict[str, Any]:
    try:
        return json.loads(_read_text(path, hint))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not complete JSON ({error}); the file is cut off") from None
