"""Writes documents as Megatron token files (.bin/.idx) through megatron-core.

One pair a category and split. Each document is followed by the end-of-document token and is one sequence and one
document of the file; documents stand in an order fixed by the hash of their keys, so a window of contiguous tokens
mixes the sources of its category. `repro.data.indexed` reads the files without megatron-core, and documents the
format; megatron-core's own `IndexedDataset` opens them as they are.

Does not: cut samples or weigh categories.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from repro.data.document import Document
from repro.data.encode import Encoder
from repro.data.order import stable_key
from repro.data.tokenizer import END_OF_DOCUMENT_ID

#: Documents encoded at a time: bounds memory, and is plenty for the encoder's threads.
BATCH = 2048


def token_dtype(vocab_size: int) -> type[np.generic]:
    """Two bytes a token up to 65,536 entries, else four."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def in_file_order(documents: Sequence[Document]) -> list[Document]:
    """The documents in an order that depends on their keys alone."""
    return sorted(documents, key=lambda document: (int(stable_key("file order", document.key)), document.key))


def write_token_files(
    prefix: Path, documents: Sequence[Document], encoder: Encoder, *, vocab_size: int
) -> dict[str, int]:
    """Write `prefix`.bin and `prefix`.idx; returns counts: documents, tokens (ends of documents included), bytes.

    Raises:
        ValueError: megatron-core is not installed.
    """
    builder = builder_class()(f"{prefix}.bin", dtype=token_dtype(vocab_size))
    ordered = in_file_order(documents)
    num_tokens = 0
    for first in range(0, len(ordered), BATCH):
        texts = [document.text for document in ordered[first : first + BATCH]]
        for ids in encoder.encode(texts):
            tokens = np.append(ids, END_OF_DOCUMENT_ID)
            builder.add_document(tokens, [len(tokens)])
            num_tokens += len(tokens)
    builder.finalize(f"{prefix}.idx")
    num_bytes = sum(len(document.text.encode()) for document in ordered)
    return {"documents": len(ordered), "tokens": num_tokens, "text_bytes": num_bytes}


def builder_class() -> type:
    """megatron-core's writer of .bin/.idx pairs. Raises ValueError when it is not installed."""
    with warnings.catch_warnings():
        # megatron-core warns about every accelerator library that a data job has no use for.
        warnings.simplefilter("ignore")
        try:
            from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
        except ImportError as error:
            raise ValueError(
                "writing token files needs megatron-core (extra 'workflow' of this project)"
            ) from error
    return IndexedDatasetBuilder
