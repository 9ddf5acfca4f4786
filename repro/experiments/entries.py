"""Every run of a tier as it is told: the entries of configs/experiments, and the tier's replicas as further ones.

Not here: what an entry means together with those that it names (repro.experiments.derive).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from repro.experiments.errors import nearest, read_mapping, validate
from repro.experiments.schema import ExperimentFile, Family, RunEntry, Tier


@dataclass(frozen=True)
class Told:
    """A run as told, and where."""

    file: Path
    family: Family
    entry: RunEntry


def read_entries(configs_dir: Path, tier: Tier) -> dict[str, Told]:
    """Every run of every experiment file and every replica of `tier`, by name.

    Raises ValueError naming the file for: no experiment files, a run told twice, a family that the tier lacks, a
    replica of an unknown run, of the tier's own seed or there twice.
    """
    entries = _of_files(configs_dir / "experiments")
    tier_file = configs_dir / "tiers" / f"{tier.tier}.yaml"
    for name, told in entries.items():
        if told.family not in tier.families:
            raise ValueError(
                f"{tier_file}: families: no {told.family}, which {told.file}: runs.{name} trains"
            )
    _add_replicas(entries, tier, tier_file)
    return entries


def _of_files(folder: Path) -> dict[str, Told]:
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise ValueError(f"{folder}: no experiment files there")
    entries: dict[str, Told] = {}
    for file in files:
        content = validate(ExperimentFile, read_mapping(file), file)
        for name, entry in content.runs.items():
            if name in entries:
                raise ValueError(f"{file}: runs.{name} is already told in {entries[name].file}")
            entries[name] = Told(file, content.family, entry)
    return entries


def _add_replicas(entries: dict[str, Told], tier: Tier, tier_file: Path) -> None:
    for name, seeds in tier.replicas.items():
        if name not in entries:
            raise ValueError(f"{tier_file}: replicas: no run {name!r}{nearest(name, entries)}")
        for seed in seeds:
            if seed == tier.seed:
                raise ValueError(f"{tier_file}: replicas.{name}: seed {seed} is the tier's own seed")
            replica = f"{name}_seed{seed}"
            if replica in entries:
                raise ValueError(f"{tier_file}: replicas.{name}: seed {seed} is there twice")
            entries[replica] = Told(tier_file, entries[name].family, RunEntry(replica_of=name, seed=seed))
