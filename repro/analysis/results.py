"""Reads what the other stages wrote below results/<tier>: runs, evaluations, mechanisms, bench.

Everything is read as it lies there; a missing, truncated or inconsistent file is a ``ValueError`` that names it.
Does not: know what a run holds (repro.analysis.trained_run), smooth, pair, judge or draw.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from repro.analysis.record import MARK
from repro.analysis.trained_run import Run, Segment, read_json, read_text, replica_of
from repro.experiments.content import run_hash_of
from repro.experiments.errors import nearest, read_mapping
from repro.experiments.model import ModelSpec, load_model_spec

_EVALUATION_COLUMNS = ("run", "tokens", "fraction", "task", "group", "metric", "value", "stderr", "num_items")
_MECHANISM_COLUMNS = (
    "run", "tokens", "fraction", "layer", "block", "gemm", "tensor", "quantity", "variant", "value",
)  # fmt: skip


class NotRecorded(ValueError):  # noqa: N818 - a state of the project, told as such
    """A result that no record in the repository holds; only in a folder made from records."""


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
        for i, segment in enumerate(chain):
            if not self._is_recorded(segment) or segment.done["status"] == "diverged":
                return chain[: i + 1]
        return chain

    def _is_recorded(self, segment: Segment) -> bool:
        """Whether the segment's record was restored; in a folder of training, every segment counts."""
        name = f"{segment.frozen['run']}/{segment.frozen['segment']}"
        return self._mark is None or name in self._mark["recorded"]

    def replicas(self, run: str) -> list[str]:
        """Names of the runs that repeat `run` with another seed, sorted; of recorded ones those that are there."""
        found = [name for name in self.run_names if name != run and replica_of(name)[0] == run]
        return [name for name in found if self.has(name)]

    @cached_property
    def _mark(self) -> dict[str, Any] | None:
        path = self.folder / MARK
        return read_json(path, "") if path.is_file() else None

    def has(self, name: str) -> bool:
        """Whether the run can be read: always in a folder of training, where `run` says what is wrong."""
        return self._mark is None or all(map(self._is_recorded, self._ended(self._chain(name))))

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

    def has_table(self, kind: str, run: str) -> bool:
        """Whether <kind>/<run>.csv is there ("evaluations" or "mechanisms")."""
        return (self.folder / kind / f"{run}.csv").is_file()

    def _table(self, kind: str, run: str, columns: tuple[str, ...]) -> pd.DataFrame:
        path = self.folder / kind / f"{run}.csv"
        if self._mark is not None and not self.has_table(kind, run):
            raise NotRecorded(f"{kind} of {run}: not recorded")
        if not read_text(path, "an earlier stage of the workflow writes it").strip():
            raise ValueError(f"{path}: empty")
        table = pd.read_csv(path)
        missing = [column for column in columns if column not in table]
        if missing or table.empty:
            raise ValueError(f"{path}: " + (f"no column {', '.join(missing)}" if missing else "no rows"))
        return table.drop(columns="run_hash", errors="ignore")

    def bench(self) -> dict[str, Any]:
        """bench/gemm.json as `repro bench` writes it: provenance and `rows`."""
        return read_json(self.folder / "bench" / "gemm.json", "`repro bench` writes it")

    def model_spec(self, family: str, *, tier: str) -> ModelSpec:
        """configs/models/<tier>/<family>.yaml, validated."""
        return load_model_spec(self.configs / "models" / tier / f"{family}.yaml")

    def _last_segment(self, name: str) -> int:
        numbers = [int(path.parent.name) for path in self.folder.glob(f"runs/{name}/*/run.yaml")]
        if not numbers:
            known = nearest(name, self.run_names)
            raise ValueError(f"{self.folder / 'runs' / name}: no frozen run {name!r}{known}")
        return max(numbers)

    def _segment(self, name: str, number: int) -> Segment:
        path = self.folder / "runs" / name / str(number) / "run.yaml"
        if not path.is_file():
            raise ValueError(f"{path}: missing; `snakemake` freezes it from configs/")
        frozen = read_mapping(path)
        missing = [key for key in ("run", "run_hash", "tier", "schedule", "seed") if key not in frozen]
        if missing:
            raise ValueError(f"{path}: cut off or no frozen run; missing {', '.join(missing)}")
        if run_hash_of(frozen) != frozen["run_hash"]:
            raise ValueError(
                f"{path}: what it holds does not fit its run_hash {frozen['run_hash']}: it was changed after it was "
                "frozen; change configs/ instead, and freeze again"
            )
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
