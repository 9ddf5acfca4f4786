"""All runs of one tier, cut into segments: `load(tier)` -> `Plan`.

A segment is one training job: it starts at the run's beginning, at a fork or at the end of the segment before, and
ends where somebody else forks or where the run ends. Fractions of the horizon become tokens here, rounded to whole
optimizer steps; what was rounded is kept in `Run.notes`. Each segment carries its frozen content (`Segment.frozen`),
so that the graph, the cost plan and the file on disk can't disagree.

Everything is a pure function of the files under configs/; nothing is written (repro.experiments.freeze does).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from repro.experiments.content import frozen_content, run_hash_of
from repro.experiments.data_spec import DataSpec, load_data_spec
from repro.experiments.derive import Derived, derive_all
from repro.experiments.errors import nearest, read_mapping, validate
from repro.experiments.model import ModelSpec, load_model_spec
from repro.experiments.recipe import Recipe
from repro.experiments.schema import FamilySettings, Resources, Tier

DEFAULT_CONFIGS = Path("configs")


@dataclass(frozen=True)
class Segment:
    """One training job. Tokens count from the start of the run's lineage; `parent` = (run, segment) it continues."""

    run: str
    index: int
    start_tokens: int
    end_tokens: int
    frozen: Mapping[str, Any]
    run_hash: str
    parent: tuple[str, int] | None
    resources: Resources

    @property
    def folder(self) -> str:
        """Below results/<tier>/."""
        return f"runs/{self.run}/{self.index}"

    @property
    def num_tokens(self) -> int:
        return self.end_tokens - self.start_tokens


@dataclass(frozen=True)
class Run:
    """One run of the paper at this tier. `horizon_tokens` is its schedule's; a fork starts late or stops early."""

    derived: Derived
    horizon_tokens: int
    step_tokens: int
    segments: tuple[Segment, ...]
    evaluation_tokens: tuple[int, ...]
    measure_tokens: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.derived.name

    @property
    def family(self) -> str:
        return self.derived.family

    @property
    def recipe(self) -> Recipe:
        return self.derived.recipe

    @property
    def parent(self) -> str | None:
        """The run that this one continues from a fork point; None when it trains from the start."""
        return self.derived.parent

    @property
    def replica_of(self) -> str | None:
        return self.derived.entry.replica_of

    @property
    def seed(self) -> int:
        return self.derived.seed

    @property
    def label(self) -> str:
        """Series name; influences no number."""
        return self.derived.entry.label or self.name

    @property
    def elements(self) -> tuple[str, ...]:
        return self.derived.entry.elements

    @property
    def claims(self) -> tuple[str, ...]:
        return self.derived.entry.claims

    @property
    def start_tokens(self) -> int:
        return self.segments[0].start_tokens

    @property
    def end_tokens(self) -> int:
        return self.segments[-1].end_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens that this run trains itself (a fork: without its parent's)."""
        return self.end_tokens - self.start_tokens


@dataclass(frozen=True)
class Plan:
    """All runs of a tier, parents before children."""

    tier: str
    spec: Tier
    configs_dir: Path
    models: Mapping[str, ModelSpec]
    runs: dict[str, Run]

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
        """One segment; raises ValueError when the run has fewer."""
        segments = self.run(run).segments
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
    spec = validate(Tier, read_mapping(tier_file), tier_file)
    if spec.tier != tier:
        raise ValueError(f"{tier_file}: tier is {spec.tier!r}, the file says {tier!r}")
    data = load_data_spec(configs_dir / "data" / f"{spec.data}.yaml")
    models = {
        family: load_model_spec(configs_dir / "models" / tier / f"{family}.yaml") for family in spec.families
    }
    _check_tier(spec, tier_file, data, models)
    derived = derive_all(configs_dir, spec, models)
    for key in ("evaluate_at", "measure_at"):
        for name in getattr(spec, key):
            if name not in derived:
                raise ValueError(f"{tier_file}: {key}: no run {name!r}{nearest(name, derived)}")
    runs: dict[str, Run] = {}
    for name, run in derived.items():
        runs[name] = _cut(
            run, derived, runs, spec=spec, data=data, model=models[run.family], tier_file=tier_file
        )
    return Plan(tier=tier, spec=spec, configs_dir=configs_dir, models=models, runs=runs)


def _check_tier(spec: Tier, tier_file: Path, data: DataSpec, models: Mapping[str, ModelSpec]) -> None:
    for family, settings in spec.families.items():
        where = f"{tier_file}: families.{family}"
        if settings.blend not in data.blends:
            raise ValueError(
                f"{where}.blend: data {data.name} has no blend {settings.blend!r}"
                f"{nearest(settings.blend, data.blends)}"
            )
        if settings.sequence_length_tokens > models[family].max_sequence_tokens:
            raise ValueError(
                f"{where}.sequence_length_tokens: {settings.sequence_length_tokens} is more than "
                f"{models[family].name} takes (max_sequence_tokens {models[family].max_sequence_tokens})"
            )
        if settings.horizon_tokens < settings.step_tokens:
            raise ValueError(
                f"{where}.horizon_tokens: {settings.horizon_tokens} is less than one step of {settings.step_tokens}"
            )
        if models[family].vocab_size != data.tokenizer.vocab_size:
            raise ValueError(
                f"{where}: {models[family].name} has vocab_size {models[family].vocab_size}, the tokenizer of data "
                f"{data.name} has {data.tokenizer.vocab_size}"
            )


class _Clock:
    """Fractions of one run's horizon as tokens of whole steps, remembering what was rounded."""

    def __init__(self, run: Derived, settings: FamilySettings) -> None:
        self.step = settings.step_tokens
        exact = settings.horizon_tokens * run.horizon_factor
        self.num_steps = max(1, round(exact / self.step))
        self.notes: dict[str, str] = {}
        self._note("horizon", exact, self.num_steps)

    @property
    def horizon(self) -> int:
        return self.num_steps * self.step

    def at(self, fraction: float, what: str | None = None) -> int:
        """Tokens of the nearest whole step."""
        steps = round(fraction * self.num_steps)
        if what:
            self._note(what, fraction * self.horizon, steps)
        return steps * self.step

    def every(self, fraction: float) -> int:
        """A period in tokens, at least one step."""
        return max(1, round(fraction * self.num_steps)) * self.step

    def _note(self, what: str, exact: float, steps: int) -> None:
        if abs(exact - steps * self.step) > 1e-6 * self.step:
            self.notes[what] = (
                f"{what}: {exact:,.0f} tokens rounded to {steps * self.step:,} "
                f"(step {steps:,} of {self.step:,} tokens)"
            )


def _cut(
    run: Derived,
    derived: Mapping[str, Derived],
    runs: Mapping[str, Run],
    *,
    spec: Tier,
    data: DataSpec,
    model: ModelSpec,
    tier_file: Path,
) -> Run:
    """The run with its segments; `runs` holds its parent already."""
    settings = spec.families[run.family]
    clock = _Clock(run, settings)
    start = clock.at(run.fork_at, "fork_at") if run.parent else 0
    end = clock.at(run.end_at, "end_at")
    if end <= start:
        raise ValueError(
            f"{run.where}: from {run.fork_at} to {run.end_at} of the horizon is no whole step at this tier "
            f"({clock.num_steps} steps in all); raise families.{run.family}.horizon_tokens in {tier_file}"
        )
    forks = {clock.at(child.fork_at) for child in derived.values() if child.parent == run.name}
    cuts = sorted({start, end} | {tokens for tokens in forks if start < tokens < end})
    wanted = {
        key: tuple(sorted({clock.at(f) for f in getattr(spec, key).get(run.name, ())}))
        for key in ("evaluate_at", "measure_at")
    }
    for key, tokens in wanted.items():
        if any(not start < t <= end for t in tokens):
            raise ValueError(
                f"{tier_file}: {key}.{run.name}: the run trains from {run.fork_at} to {run.end_at} of its horizon"
            )
    kept = set(wanted["evaluate_at"]) | set(wanted["measure_at"])
    previous = _fork_segment(run, runs, start)
    segments: list[Segment] = []
    for index, (begin, stop) in enumerate(pairwise(cuts)):
        frozen = frozen_content(
            run,
            index,
            start_tokens=begin,
            end_tokens=stop,
            horizon_tokens=clock.horizon,
            warmup_tokens=round(settings.warmup * settings.horizon_tokens / clock.step) * clock.step,
            decay_start_tokens=clock.at(settings.decay_start, "decay_start"),
            validate_every_tokens=clock.every(settings.validation.every),
            checkpoint_every_tokens=clock.every(settings.checkpoints.every),
            keep_tokens=sorted({t for t in kept if begin < t < stop} | {stop}),
            spec=spec,
            settings=settings,
            model=model,
            data=data,
            init_from=previous,
        )
        segments.append(
            Segment(
                run=run.name,
                index=index,
                start_tokens=begin,
                end_tokens=stop,
                frozen=frozen,
                run_hash=run_hash_of(frozen),
                parent=(previous.run, previous.index) if previous else None,
                resources=settings.resources,
            )
        )
        previous = segments[-1]
    evaluated = wanted["evaluate_at"]
    return Run(
        derived=run,
        horizon_tokens=clock.horizon,
        step_tokens=clock.step,
        segments=tuple(segments),
        evaluation_tokens=tuple(sorted({*evaluated, end})) if evaluated else (),
        measure_tokens=wanted["measure_at"],
        notes=tuple(clock.notes.values()),
    )


def _fork_segment(run: Derived, runs: Mapping[str, Run], start_tokens: int) -> Segment | None:
    """The parent's segment that ends where this run starts."""
    if run.parent is None:
        return None
    ends = [segment for segment in runs[run.parent].segments if segment.end_tokens == start_tokens]
    if not ends:
        raise ValueError(
            f"{run.where}.fork_at: {run.fork_at} falls on step 0 or past the end of {run.parent} at this tier; "
            "the horizon has too few steps"
        )
    return ends[0]
