"""The meaning of configs/data/<name>.yaml: corpora, tokenizer and phase blends, as validated records.

A data configuration says which sources make up each category of the paper's blend (Appendix A.1 of
arXiv 2509.25149: web crawl, crawl++, Wikipedia, math, code, academic, multilingual, synthetic
SFT-style), how large the tokenizer is, what share of the documents is held out, and how the blend
changes along a run: the three phases of the 12B model (70/20/10 per cent of the tokens) and the two
phases of the 8B and 1.2B models (60/40).

A category may be divided into parts with weights of their own (`crawl.high`, `sft.code`).

Does not: read a corpus, know a model or a recipe, or import torch. `repro.data` prepares what is
described here; freezing a run turns a blend and a horizon into `phases_of_run`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from repro.experiments.errors import nearest, read_mapping, validate
from repro.experiments.hub_spec import HubOptions, PretrainedTokenizerSpec
from repro.experiments.record import Record

#: The paper's data categories (Appendix A.1); a configuration may leave some out or divide them, never add others.
CATEGORIES = ("crawl", "crawl_plus", "wiki", "math", "code", "academic", "multilingual", "sft")


def _check_category(name: str) -> str:
    head, dot, part = name.partition(".")
    if head not in CATEGORIES:
        raise ValueError(f"no category {name!r}{nearest(head, CATEGORIES)}")
    if dot and not re.fullmatch(r"[a-z0-9_]+", part):
        raise ValueError(f"category {name!r}: a part is small letters, digits and _, e.g. crawl.high")
    return name


Category = Annotated[str, AfterValidator(_check_category)]
Weight = Annotated[float, Field(ge=0.0)]
#: Kind of a source whose files come from the hub.
HUB = "hub"


class SourceSpec(Record):
    """One source of text. `kind` names the reader in `repro.data.sources`, `options` its arguments."""

    name: str = Field(pattern=r"^[a-z0-9_]+$", description="also of the source's folder and files")
    category: Category
    kind: str
    version: str = Field(description="version of the package the text comes from, or of our own generator")
    licence: str
    origin: str = Field(description="where the text comes from, in words a reader can follow up")
    sha256: str | None = Field(
        default=None, description="of the fetched or embedded file; null = recorded, not checked"
    )
    max_bytes: int | None = Field(
        default=None, gt=0, description="cap on clean UTF-8 bytes taken from this source"
    )
    hold_out: float | None = Field(
        default=None,
        gt=0.0,
        lt=0.5,
        description="share of this source's documents; null = hold_out.fraction",
    )
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _hub_options_fit(self) -> SourceSpec:
        if self.kind == HUB:
            validate(HubOptions, self.options, f"source {self.name}: options")
            for key in ("sha256", "max_bytes", "hold_out"):
                if getattr(self, key) is not None:
                    raise ValueError(f"source {self.name}: {key} is not for sources of kind {HUB!r}")
        return self

    @property
    def hub(self) -> HubOptions:
        """The options of a source of kind `hub`."""
        return HubOptions.model_validate(self.options)


class TokenizerSpec(Record):
    """Byte-level BPE. At most 65,536 entries keep token files at two bytes a token."""

    vocab_size: int = Field(gt=256, le=1 << 20)
    train_bytes: int = Field(
        gt=0, description="bytes of training text shown to the BPE trainer, spread over categories"
    )


def _as_tokenizer(value: Any) -> Any:
    """A mapping as the record that it means: checked here, so that a message speaks of that record alone."""
    if not isinstance(value, dict):
        return value
    if "repo" in value:
        return validate(PretrainedTokenizerSpec, value, "a finished one")
    return validate(TokenizerSpec, value, "one trained on the text")


AnyTokenizerSpec = Annotated[TokenizerSpec | PretrainedTokenizerSpec, BeforeValidator(_as_tokenizer)]


class HoldOutSpec(Record):
    """Which documents never enter training: those whose id hashes below `fraction`."""

    fraction: float = Field(gt=0.0, lt=0.5)
    salt: str = Field(description="part of the hash, so that another hold-out can be drawn")


class PhaseSpec(Record):
    """A stretch of the run with one blend, ending at `until_fraction` of the horizon."""

    until_fraction: float = Field(gt=0.0, le=1.0)
    blend: dict[Category, Weight]


class DataSpec(Record):
    """A data configuration; see the module docstring."""

    name: str
    seed: int = Field(ge=0, description="fixes the order of samples; the same for every recipe")
    sources: tuple[SourceSpec, ...]
    tokenizer: AnyTokenizerSpec
    hold_out: HoldOutSpec
    blends: dict[str, tuple[PhaseSpec, ...]]

    @property
    def categories(self) -> tuple[str, ...]:
        """Categories (or their parts) that have at least one source, in the paper's order."""
        present = dict.fromkeys(source.category for source in self.sources)
        return tuple(sorted(present, key=lambda category: CATEGORIES.index(category.partition(".")[0])))

    @property
    def sharded(self) -> bool:
        """Whether the sources come from the hub and are prepared in shards."""
        return any(source.kind == HUB for source in self.sources)

    @model_validator(mode="after")
    def _hub_sources_stand_together(self) -> DataSpec:
        for source in self.sources:
            if (source.kind == HUB) != self.sharded:
                raise ValueError(
                    f"sources: {source.name}: kind {source.kind!r} cannot stand beside kind {HUB!r}"
                )
        if self.sharded != isinstance(self.tokenizer, PretrainedTokenizerSpec):
            raise ValueError(
                f"tokenizer: sources of kind {HUB!r} go with a finished tokenizer (repo), and only they"
            )
        return self

    @model_validator(mode="after")
    def _blends_name_prepared_categories(self) -> DataSpec:
        names = [source.name for source in self.sources]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"sources: the name {repeated[0]!r} is used twice")
        for blend_name, phases in self.blends.items():
            fractions = [phase.until_fraction for phase in phases]
            if not phases or fractions != sorted(set(fractions)) or fractions[-1] != 1.0:
                raise ValueError(
                    f"blends.{blend_name}: until_fraction must rise strictly and end at 1.0, got {fractions}"
                )
            for index, phase in enumerate(phases):
                positive = {category for category, weight in phase.blend.items() if weight > 0}
                missing = sorted(positive - set(self.categories))
                if missing:
                    raise ValueError(
                        f"blends.{blend_name}[{index}]: no source has category {missing[0]!r}; "
                        f"sources cover {', '.join(self.categories)}"
                    )
                if not positive:
                    raise ValueError(f"blends.{blend_name}[{index}]: every weight is zero")
        return self

    def phases_of_run(
        self, blend: str, *, horizon_tokens: int, tokens_per_step: int
    ) -> list[dict[str, int | dict[str, float]]]:
        """The `data.phases` of a frozen run: `[{until_tokens, blend: {category: weight}}]`.

        The weights of a phase sum to 1.
        Each boundary is rounded to the nearest whole step, so that a phase switches exactly at its token.

        Args:
            blend: name of an entry of `blends`.
            horizon_tokens: length of the whole run, a multiple of tokens_per_step.
            tokens_per_step: batch_sequences * sequence_length_tokens.

        Raises:
            ValueError: unknown blend (names the nearest), a horizon that is no whole number of steps,
                or one so short that a phase would have no step.
        """
        if blend not in self.blends:
            raise ValueError(f"data {self.name}: no blend {blend!r}{nearest(blend, self.blends)}")
        if horizon_tokens <= 0 or horizon_tokens % tokens_per_step:
            raise ValueError(
                f"data {self.name}: a horizon of {horizon_tokens} tokens is not a whole number of steps of "
                f"{tokens_per_step} tokens"
            )
        num_steps = horizon_tokens // tokens_per_step
        phases: list[dict[str, int | dict[str, float]]] = []
        previous = 0
        for phase in self.blends[blend]:
            step = round(phase.until_fraction * num_steps)
            if step <= previous:
                raise ValueError(
                    f"data {self.name}, blend {blend!r}: {num_steps} steps are too few for a phase "
                    f"that ends at {phase.until_fraction:.0%} of the run"
                )
            previous = step
            total = sum(phase.blend.values())
            weights = {c: phase.blend[c] / total for c in self.categories if phase.blend.get(c, 0.0) > 0}
            phases.append({"until_tokens": step * tokens_per_step, "blend": weights})
        return phases


def load_data_spec(path: str | Path) -> DataSpec:
    """Reads configs/data/<name>.yaml. Raises ValueError naming the file, the key and the nearest valid key."""
    return validate(DataSpec, read_mapping(Path(path)), path)
