"""A run that somebody repeated, against its record in the repository.

On the same device, versions and data a repeated run should have the record's losses to the bit (records keep six
decimals). Another device or version adds in another order; the run then drifts from its record as two runs of
different seeds do, no further. So the distance of the last validation losses is measured in the spread of the model's
recorded seeds:

    spread    pooled standard deviation of the last validation losses of the family's replicated runs, in per cent
    limit     t(dof) x spread x sqrt(2): what two runs may lie apart, at 95 % (repro.analysis.noise). Runs of one seed
              share initial weights and order of samples and move together, so that dof counts seeds, less one

Does not: compare runs of different configurations; their hashes tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.analysis.noise import Noise, pool
from repro.analysis.record import Record, read_record, record_segment
from repro.analysis.recorded import segment_path
from repro.experiments import Plan, Run
from repro.experiments.errors import nearest


@dataclass(frozen=True)
class Comparison:
    """A repeated segment and its record. Losses in nats a token; the last ones are None where both diverged.

    `made_otherwise` names what the two were made with that can change a bit: data, device, versions.
    """

    name: str
    equal_steps: int
    steps: int
    largest_difference: float
    made_otherwise: tuple[str, ...]
    validation_loss: float | None
    recorded_loss: float | None

    @property
    def is_equal(self) -> bool:
        return self.equal_steps == self.steps

    @property
    def per_cent(self) -> float | None:
        """Last validation loss against the record's; None where both diverged."""
        if self.validation_loss is None or self.recorded_loss is None:
            return None
        return 100 * (self.validation_loss / self.recorded_loss - 1)

    def words(self) -> str:
        """One line."""
        losses = (
            f"all {self.steps} training losses equal"
            if self.is_equal
            else f"{self.equal_steps} of {self.steps} training losses equal, the others up to "
            f"{self.largest_difference:.4f} nats apart"
        )
        if self.made_otherwise:
            losses += f" (with {'; '.join(self.made_otherwise)})"
        if self.per_cent is None:
            return f"{self.name}: {losses}; diverged, as the record did"
        return (
            f"{self.name}: {losses}; last validation loss {self.validation_loss:.4f}, "
            f"recorded {self.recorded_loss:.4f} ({self.per_cent:+.2f} %)"
        )


def compare(plan: Plan, run: str, results: Path, recorded: Path) -> list[Comparison]:
    """The run's segments in `results` (results/<tier>) against `recorded`/<tier>.

    Raises ValueError: no such run, a segment that is not recorded, not trained (with the command that trains it), of
    another configuration, or that diverged on one side alone.
    """
    known = {**plan.runs, **plan.sweep}
    if run not in known:
        raise ValueError(
            f"{run}: no such run at tier {plan.tier} (`repro list --runs --tier {plan.tier}` names them)"
            f"{nearest(run, known)}"
        )
    segments = known[run].segments
    records = [_recorded(recorded, plan.tier, run, segment.index) for segment in segments]
    _check_trained(plan, run, len(segments), results)
    return [
        _compared(
            record_segment(results / "runs" / run / str(segment.index)), record, f"{run}/{segment.index}"
        )
        for segment, record in zip(segments, records, strict=True)
    ]


def spread_of(plan: Plan, family: str, recorded: Path) -> Noise | None:
    """Of the last validation losses over seeds, in per cent; None when no run is recorded with several.

    Records of another configuration and of runs that diverged do not count.
    """
    groups = []
    for name, run in plan.runs.items():
        if run.family != family or run.replica_of:
            continue
        ends = [_end(plan.runs[other], recorded / plan.tier) for other in (name, *plan.replicas(name))]
        losses = [loss for loss in ends if loss is not None]
        groups.append([100 * loss * len(losses) / sum(losses) for loss in losses])
    return pool(groups)


def _end(run: Run, folder: Path) -> float | None:
    """The last validation loss of a run that is recorded as it is configured today."""
    path = segment_path(folder, run.name, run.segments[-1].index)
    record = read_record(path) if path.is_file() else None
    return _last(record) if record and record["run_hash"] == run.segments[-1].run_hash else None


def _recorded(recorded: Path, tier: str, run: str, segment: int) -> Record:
    if not recorded.is_dir():
        raise ValueError(f"{recorded}: no such folder of records")
    path = segment_path(recorded / tier, run, segment)
    if path.is_file():
        return read_record(path)
    of_tiers = {
        folder.parent.name: sorted(p.name for p in folder.iterdir()) for folder in recorded.glob("*/runs")
    }
    if tier in of_tiers:
        raise ValueError(f"{run}/{segment}: not recorded in {recorded / tier}{nearest(run, of_tiers[tier])}")
    others = [f"{other} (`--tier {other}`)" for other in sorted(of_tiers)]
    of_others = f"; {recorded} holds those of {', '.join(others)}" if others else ""
    raise ValueError(f"{run}: no run of tier {tier} is recorded{of_others}")


def _check_trained(plan: Plan, run: str, num_segments: int, results: Path) -> None:
    """Raises ValueError with the command that trains what is missing."""
    done = [results / "runs" / run / str(index) / "done.json" for index in range(num_segments)]
    there = sum(path.is_file() for path in done)
    if there == len(done):
        return
    elsewhere = "" if results.parent == Path("results") else f" results={results.parent}"
    remedy = f"`snakemake --cores 2 {done[-1]} --config tier={plan.tier}{elsewhere}` trains it"
    if run in plan.sweep:  # no run of the workflow's
        command = f"python -m repro.campaign --recorded none run {run} --data DATA --out OUT"
        remedy = f"`{command}` trains it; then copy OUT/runs to {results}"
    words = f"{there} of {len(done)} segments trained" if there else "not trained"
    raise ValueError(f"{run}: {words} in {results}; {remedy}")


def _compared(ours: Record, theirs: Record, name: str) -> Comparison:
    if ours["run_hash"] != theirs["run_hash"]:
        raise ValueError(
            f"{name}: recorded with configuration {theirs['run_hash']}, repeated with {ours['run_hash']}; "
            "`git diff configs` shows what was changed"
        )
    if ours["done"]["status"] != theirs["done"]["status"]:
        raise ValueError(f"{name}: {ours['done']['status']}, but the record {theirs['done']['status']}")
    pairs = list(zip(ours["train"]["loss"], theirs["train"]["loss"], strict=False))
    return Comparison(
        name,
        equal_steps=sum(a == b for a, b in pairs),
        steps=max(len(ours["train"]["loss"]), len(theirs["train"]["loss"])),
        largest_difference=max(
            (abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0
        ),
        made_otherwise=_made_otherwise(*(record["done"].get("provenance", {}) for record in (ours, theirs))),
        validation_loss=_last(ours),
        recorded_loss=_last(theirs),
    )


def _made_otherwise(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[str, ...]:
    """What both provenances name and name differently; one that only one of them names is not told."""
    differences = []
    if ours.get("data_sha256") != theirs.get("data_sha256") and "data_sha256" in ours.keys() & theirs.keys():
        differences.append("other data: the manifests differ")
    own, recorded = ({"device": made.get("device"), **made.get("versions", {})} for made in (ours, theirs))
    differences += [
        f"{name} {own[name]}, recorded {recorded[name]}"
        for name in own
        if recorded.get(name) and own[name] and own[name] != recorded[name]
    ]
    return tuple(differences)


def _last(record: Record) -> float | None:
    return record["validation"][-1]["loss"] if record["done"]["status"] == "completed" else None
