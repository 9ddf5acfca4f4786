"""All runs of one tier: `load(tier)` -> `Plan`, a pure function of the files under configs/.

Each segment carries its frozen content (`Segment.frozen`), so that the graph, the cost plan and the file on disk
can't disagree. Nothing is written here (repro.experiments.freeze does).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from repro.experiments.common import written_at
from repro.experiments.cut import cut_run
from repro.experiments.data_spec import DataSpec, load_data_spec
from repro.experiments.derive import derive_all
from repro.experiments.errors import nearest, read_mapping, validate
from repro.experiments.model import ModelSpec, load_model_spec
from repro.experiments.run import Run, Segment
from repro.experiments.schema import Resources, Tier
from repro.experiments.sweep import sweep_runs

DEFAULT_CONFIGS = Path("configs")


@dataclass(frozen=True)
class Plan:
    """All runs of a tier, parents before children; `sweep` holds the runs that choose its learning rates."""

    tier: str
    spec: Tier
    configs_dir: Path
    models: Mapping[str, ModelSpec]
    runs: dict[str, Run]
    sweep: dict[str, Run] = field(default_factory=dict)

    def run(self, name: str) -> Run:
        """The run `name`; raises ValueError with the nearest name."""
        if name not in self.runs:
            raise ValueError(f"no run {name!r} at tier {self.tier}{nearest(name, self.runs)}")
        return self.runs[name]

    @property
    def backend(self) -> str:
        """What trains the runs: portable or cluster."""
        return self.spec.backend

    @property
    def data_config(self) -> str:
        """Name of the tier's file in configs/data."""
        return self.spec.data

    def replicas(self, run: str) -> list[str]:
        """Names of the runs that repeat `run` with another seed."""
        return [other.name for other in self.runs.values() if other.replica_of == run]

    def resources(self, run: str, index: int) -> Resources:
        """What the job of one segment asks for."""
        return self.segment(run, index).resources

    @property
    def segments(self) -> Iterator[Segment]:
        """Every segment, parents before children."""
        return (segment for run in self.runs.values() for segment in run.segments)

    def segment(self, run: str, index: int) -> Segment:
        """One segment, of the sweep too; raises ValueError when the run has fewer."""
        segments = (self.sweep.get(run) or self.run(run)).segments
        if not 0 <= int(index) < len(segments):
            raise ValueError(f"run {run!r} has segments 0 to {len(segments) - 1}, not {index}")
        return segments[int(index)]

    def lineage(self, name: str) -> list[Segment]:
        """The segments whose metrics, one after the other, are the curve of `name` from token 0 to its end."""
        chain = [self.run(name).segments[-1]]
        while (parent := chain[-1].parent) is not None:
            chain.append(self.segment(*parent))
        return chain[::-1]


def load(tier: str, *, configs_dir: str | Path = DEFAULT_CONFIGS) -> Plan:
    """Reads and checks configs/ for one tier.

    Raises ValueError in the user's words, naming file and key, for anything that does not fit: see
    repro.experiments.derive and .schema.
    """
    configs_dir = Path(configs_dir)
    tier_file = configs_dir / "tiers" / f"{tier}.yaml"
    if not tier_file.is_file():
        known = sorted(p.stem for p in (configs_dir / "tiers").glob("*.yaml"))
        raise ValueError(f"no tier {tier!r} in {configs_dir / 'tiers'}{nearest(tier, known)}")
    content = read_mapping(tier_file)
    spec = validate(Tier, content, tier_file, written_at=partial(written_at, content))
    if spec.tier != tier:
        raise ValueError(f"{tier_file}: tier is {spec.tier!r}, the file says {tier!r}")
    data = load_data_spec(configs_dir / "data" / f"{spec.data}.yaml")
    models = {
        family: load_model_spec(configs_dir / "models" / tier / f"{family}.yaml") for family in spec.families
    }
    _check_tier(spec, tier_file, content, data, models)
    derived = derive_all(configs_dir, spec, models)
    for key in ("evaluate_at", "measure_at"):
        for name in getattr(spec, key):
            if name not in derived:
                raise ValueError(f"{tier_file}: {key}: no run {name!r}{nearest(name, derived)}")
    runs: dict[str, Run] = {}
    for name, run in derived.items():
        runs[name] = cut_run(
            run, derived, runs, spec=spec, data=data, model=models[run.family], tier_file=tier_file
        )
    sweep = sweep_runs(spec, data=data, models=models, configs_dir=configs_dir)
    return Plan(tier=tier, spec=spec, configs_dir=configs_dir, models=models, runs=runs, sweep=sweep)


def _check_tier(
    spec: Tier, tier_file: Path, content: dict[str, Any], data: DataSpec, models: Mapping[str, ModelSpec]
) -> None:
    """What the data and the models have to fit; `content` is that of the file, to say where a key stands."""

    def place(family: str, key: str) -> str:
        return f"{tier_file}: {'.'.join(written_at(content, ('families', family, key), ''))}"

    for family, settings in spec.families.items():
        if settings.blend not in data.blends:
            raise ValueError(
                f"{place(family, 'blend')}: data {data.name} has no blend {settings.blend!r}"
                f"{nearest(settings.blend, data.blends)}"
            )
        if settings.sequence_length_tokens > models[family].max_sequence_tokens:
            raise ValueError(
                f"{place(family, 'sequence_length_tokens')}: {settings.sequence_length_tokens} is more than "
                f"{models[family].name} takes (max_sequence_tokens {models[family].max_sequence_tokens})"
            )
        if settings.horizon_tokens < settings.step_tokens:
            raise ValueError(
                f"{place(family, 'horizon_tokens')}: {settings.horizon_tokens} is less than one step of "
                f"{settings.step_tokens}"
            )
        if models[family].vocab_size != data.tokenizer.vocab_size:
            raise ValueError(
                f"{tier_file}: families.{family}: {models[family].name} has vocab_size "
                f"{models[family].vocab_size}, the tokenizer of data {data.name} has {data.tokenizer.vocab_size}"
            )
