"""From what an experiment file says of a run to its full settings: parent + fork + change, resolved.

`derive_all` follows `parent` and `replica_of` until each run that is told (repro.experiments.entries) has a recipe,
its blocks in BF16, a horizon and a place to start. Nothing is copied: a change of the parent reaches its children. A
replica of a fork continues from the replica of its parent with the same seed, so that replicas differ from their
first step.

Not here: tokens and segments (repro.experiments.cut), the frozen content (repro.experiments.content).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from repro.experiments.entries import Told, read_entries
from repro.experiments.errors import nearest
from repro.experiments.library import Library
from repro.experiments.model import Bf16Blocks, ModelSpec
from repro.experiments.recipe import Recipe
from repro.experiments.schema import Family, RunEntry, Tier


@dataclass(frozen=True)
class Derived:
    """One run with everything settled but tokens. `fork_at`, `end_at` are fractions of its own horizon."""

    name: str
    family: Family
    file: Path
    entry: RunEntry
    recipe: Recipe
    base: str
    bf16_blocks: str
    horizon_factor: float
    parent: str | None
    fork_at: float
    end_at: float
    seed: int

    @property
    def where(self) -> str:
        """How a message names this run."""
        return f"{self.file}: runs.{self.name}"


def derive_all(configs_dir: Path, tier: Tier, models: Mapping[str, ModelSpec]) -> dict[str, Derived]:
    """Every run of every experiment file and every replica of `tier`, parents before their children.

    Raises ValueError naming file and run for: a run told twice, an unknown parent, recipe or blocks key, parents
    that go in a circle, a fork outside its parent's tokens, and two names for one and the same run.
    """
    entries = read_entries(configs_dir, tier)
    library = Library(configs_dir / "recipes")
    done: dict[str, Derived] = {}
    for name in entries:
        _derive(name, entries, done, (), library=library, models=models, tier=tier)
    _refuse_twins(done)
    return done


def _derive(
    name: str,
    entries: Mapping[str, Told],
    done: dict[str, Derived],
    path: tuple[str, ...],
    *,
    library: Library,
    models: Mapping[str, ModelSpec],
    tier: Tier,
) -> Derived:
    """Fills `done` with `name` and, before it, the runs it derives from."""
    if name in done:
        return done[name]
    told = entries[name]
    where = f"{told.file}: runs.{name}"
    if name in path:
        raise ValueError(f"{where}: its parents go in a circle: {' -> '.join((*path, name))}")

    def follow(other: str, key: str) -> Derived:
        if other not in entries:
            raise ValueError(f"{where}.{key}: no run {other!r}{nearest(other, entries)}")
        return _derive(other, entries, done, (*path, name), library=library, models=models, tier=tier)

    entry = told.entry
    if entry.replica_of is not None:
        derived = _replica(name, told, follow(entry.replica_of, "replica_of"), entries)
        if derived.parent is not None:
            follow(derived.parent, "replica_of")
    elif entry.parent is not None:
        derived = _child(name, told, follow(entry.parent, "parent"), library)
    else:
        derived = Derived(
            name=name,
            family=told.family,
            file=told.file,
            entry=entry,
            recipe=library.recipe(str(entry.base), where=f"{where}.base"),
            base=str(entry.base),
            bf16_blocks="none",
            horizon_factor=entry.horizon or 1.0,
            parent=None,
            fork_at=0.0,
            end_at=entry.end_at,
            seed=tier.seed,
        )
    if derived.end_at > 1.0:
        raise ValueError(f"{where}.end_at: {derived.end_at} is beyond the horizon; 1.0 is its end")
    if entry.changes:
        try:
            derived = replace(derived, recipe=derived.recipe.with_changes(entry.changes))
        except ValueError as error:
            raise ValueError(f"{where}.changes: {error}") from None
    if entry.bf16_blocks is not None:
        derived = _with_blocks(derived, entry.bf16_blocks, models[told.family])
    _check_blocks(derived, models[told.family])
    done[name] = derived
    return derived


def _child(name: str, told: Told, parent: Derived, library: Library) -> Derived:
    entry, where = told.entry, f"{told.file}: runs.{name}"
    if parent.family != told.family:
        raise ValueError(
            f"{where}.parent: {parent.name} is a {parent.family} run, this file is {told.family}"
        )
    recipe, base = parent.recipe, parent.base
    if entry.recipe is not None:
        base = entry.recipe
        fresh = library.recipe(base, where=f"{where}.recipe")
        recipe = fresh.model_copy(update={"bf16_blocks": parent.recipe.bf16_blocks})
    if entry.fork_at is not None:
        _check_fork(entry, parent, where)
    return Derived(
        name=name,
        family=told.family,
        file=told.file,
        entry=entry,
        recipe=recipe,
        base=base,
        bf16_blocks=parent.bf16_blocks,
        horizon_factor=entry.horizon or parent.horizon_factor,
        parent=parent.name if entry.fork_at is not None else None,
        fork_at=entry.fork_at or 0.0,
        end_at=entry.end_at,
        seed=parent.seed,
    )


def _check_fork(entry: RunEntry, parent: Derived, where: str) -> None:
    fork_at = float(entry.fork_at or 0.0)
    if fork_at >= 1.0:
        raise ValueError(
            f"{where}.fork_at: {fork_at} is beyond the horizon of {parent.name}: 1.0 is its end, and nothing is left "
            "to train there"
        )
    if fork_at > parent.end_at:
        raise ValueError(f"{where}.fork_at: {fork_at}, but {parent.name} ends at {parent.end_at}")
    if fork_at <= parent.fork_at:
        raise ValueError(
            f"{where}.fork_at: {fork_at}, but {parent.name} itself starts at {parent.fork_at}; "
            f"fork from {parent.parent or 'an earlier run'}"
        )
    if fork_at >= entry.end_at:
        raise ValueError(f"{where}: fork_at {fork_at} is not before end_at {entry.end_at}")


def _replica(name: str, told: Told, original: Derived, entries: Mapping[str, Told]) -> Derived:
    seed = int(told.entry.seed or 0)
    where = f"{told.file}: {name}"
    if original.entry.replica_of is not None:
        raise ValueError(f"{where}: {original.name} is a replica itself; write {original.entry.replica_of}")
    parent = original.parent
    if parent is not None:
        parent = f"{parent}_seed{seed}"
        if parent not in entries:
            raise ValueError(
                f"{where}: {original.name} forks from {original.parent}; its replica needs one of that run too: "
                f"add seed {seed} to replicas.{original.parent}"
            )
    label = f"{original.entry.label or original.name} (seed {seed})"
    entry = told.entry.model_copy(
        update={
            "label": label,
            "elements": original.entry.elements,
            "claims": original.entry.claims,
            "source": original.entry.source,
        }
    )
    return replace(original, name=name, file=told.file, entry=entry, parent=parent, seed=seed)


def _with_blocks(derived: Derived, wanted: str | Bf16Blocks, model: ModelSpec) -> Derived:
    where = f"{derived.where}.bf16_blocks"
    if isinstance(wanted, Bf16Blocks):
        counts, label = wanted, f"first{wanted.first}_last{wanted.last}"
    else:
        if wanted not in model.bf16_blocks:
            raise ValueError(
                f"{where}: model {model.name} has no entry {wanted!r}{nearest(wanted, model.bf16_blocks)}"
            )
        counts, label = model.bf16_blocks[wanted], wanted
    recipe = derived.recipe.model_copy(update={"bf16_blocks": counts})
    return replace(derived, recipe=recipe, bf16_blocks=label)


def _check_blocks(derived: Derived, model: ModelSpec) -> None:
    """Raises ValueError for more blocks in BF16 than there are, and for a quantising recipe that leaves none."""
    counts, recipe = derived.recipe.bf16_blocks, derived.recipe
    changed = [path for path in derived.entry.changes or {} if path.partition(".")[0] == "bf16_blocks"]
    key = f"changes.{changed[-1]}" if changed else "bf16_blocks"
    words = f"{derived.where}.{key}: first {counts.first} + last {counts.last} blocks in BF16 are"
    number = f"the {model.num_blocks} blocks of {model.name}"
    if counts.first + counts.last > model.num_blocks:
        raise ValueError(f"{words} more than {number}")
    if counts.first + counts.last == model.num_blocks and recipe != recipe.in_bf16():
        raise ValueError(f"{words} {number}: nothing is left to quantise; `recipe: bf16` is that run")


def _refuse_twins(done: Mapping[str, Derived]) -> None:
    """Two names for one run would train it twice and show noise-free agreement."""
    seen: dict[object, Derived] = {}
    for run in done.values():
        identity = (run.family, run.recipe, run.horizon_factor, run.parent, run.fork_at, run.end_at, run.seed)
        if identity in seen:
            raise ValueError(
                f"{run.where} is the same run as {seen[identity].name}: same recipe, start, end and seed; "
                "let the elements share one run"
            )
        seen[identity] = run
