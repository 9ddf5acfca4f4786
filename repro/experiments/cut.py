"""A derived run cut into segments: fractions of the horizon become tokens of whole optimizer steps.

Cuts lie where other runs fork and at the run's own ends. Every position is rounded to the nearest step; what was
rounded is kept in `Run.notes`, and a stretch of no step is an error that says what to raise.

Not here: the content of a frozen segment (repro.experiments.content).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from repro.experiments.content import frozen_content
from repro.experiments.data_spec import DataSpec
from repro.experiments.derive import Derived
from repro.experiments.model import ModelSpec
from repro.experiments.run import Run, Segment
from repro.experiments.schema import FamilySettings, Tier


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


def cut_run(
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
                run_hash=frozen["run_hash"],
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
