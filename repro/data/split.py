"""Decides which documents are held out, before anything has looked at a text.

A document is held out when the hash of its key (source and name) falls below the configured share. The decision does
not depend on other documents, on their order or on the text, so adding a source or a version moves no document of
another source from one side to the other. `repro.data.dedup` then removes from training what repeats held-out text.

A small source whose held-out text the evaluation items need may give a larger share (`hold_out` of the source).

Does not: look at the text, or balance categories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from repro.data.document import Document
from repro.data.order import stable_key
from repro.experiments.data_spec import HoldOutSpec


def is_held_out(key: str, hold_out: HoldOutSpec, *, fraction: float | None = None) -> bool:
    """Whether the document of this key belongs to validation; `fraction` replaces that of the configuration."""
    share = hold_out.fraction if fraction is None else fraction
    return int(stable_key("hold out", hold_out.salt, key)) < share * 2.0**64


def split(
    documents: Iterable[Document],
    hold_out: HoldOutSpec,
    *,
    fractions: Mapping[str, float | None] | None = None,
) -> tuple[list[Document], list[Document]]:
    """(training, validation), each in the given order; `fractions`: source -> its own share, where it has one."""
    own = fractions or {}
    training: list[Document] = []
    validation: list[Document] = []
    for document in documents:
        held_out = is_held_out(document.key, hold_out, fraction=own.get(document.source))
        (validation if held_out else training).append(document)
    return training, validation
