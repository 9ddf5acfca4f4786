"""Decides which documents are held out, before anything has looked at a text.

A document is held out when the hash of its key (source and name) falls below the configured share. The decision does
not depend on other documents, on their order or on the text, so adding a source or a version moves no document of
another source from one side to the other. `repro.data.dedup` then removes from training what repeats held-out text.

Does not: look at the text, or balance categories (each loses about the same share).
"""

from __future__ import annotations

from collections.abc import Iterable

from repro.data.document import Document
from repro.data.order import stable_key
from repro.experiments.data_spec import HoldOutSpec


def is_held_out(key: str, hold_out: HoldOutSpec) -> bool:
    """Whether the document of this key belongs to validation."""
    return int(stable_key("hold out", hold_out.salt, key)) < hold_out.fraction * 2.0**64


def split(documents: Iterable[Document], hold_out: HoldOutSpec) -> tuple[list[Document], list[Document]]:
    """(training, validation), each in the given order."""
    training: list[Document] = []
    validation: list[Document] = []
    for document in documents:
        (validation if is_held_out(document.key, hold_out) else training).append(document)
    return training, validation
