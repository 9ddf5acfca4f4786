"""Tokenises one shard of a published corpus: its files, one after the other, to Megatron token files.

    FOLDER/shards/<source>/listing.json             the source's files at one revision
    FOLDER/shards/<source>/<n>_{train,validation}.{bin,idx}
    FOLDER/shards/<source>/<n>.json                 the shard's record, written last: counts, origin, SHA-256

A shard is one job. One that has its record, for the same text, tokenizer and split, is not made again; one without
is made from its start, but what it had downloaded is not downloaded again: a shard's files stay until it is finished.
Only a batch of text is in memory.

Which side of the split a document is on follows from a hash of its text: equal texts are on one side, in whatever
shard they lie, so no document of the validation set is in training. Each document ends with the tokenizer's
end-of-document token; text that spells out a special token stays text.

Does not: clean or deduplicate (the data sets are published clean and deduplicated, each in itself), find near copies
or rephrasings of held-out text, or remove benchmark questions.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from repro.data.encode import Encoder
from repro.data.hub import Listing, file_on_disk, list_source
from repro.data.manifest import sha256_of
from repro.data.pretrained import read_origin
from repro.data.rows import texts_of
from repro.data.split import is_held_out
from repro.data.token_files import builder_class, token_dtype
from repro.data.tokenizer import load_tokenizer
from repro.experiments.data_spec import DataSpec, SourceSpec
from repro.experiments.errors import nearest

#: Part of a shard's identity: to be raised when the same files give other tokens.
PIPELINE_VERSION = 1
SPLITS = ("train", "validation")
#: Bytes of text that are encoded at a time: plenty for the encoder's threads.
_BATCH_BYTES = 8 << 20

Say = Callable[[str], None]


def source_of(spec: DataSpec, name: str) -> SourceSpec:
    """The source `name`; raises ValueError with the nearest name."""
    for source in spec.sources:
        if source.name == name:
            return source
    raise ValueError(f"data {spec.name}: no source {name!r}{nearest(name, (s.name for s in spec.sources))}")


def shard_prefix(data_dir: Path, source: str, number: int) -> Path:
    """Path of a shard without the endings of its files."""
    return data_dir / "shards" / source / f"{number:04d}"


def listing_path(data_dir: Path, source: str) -> Path:
    """Where a source's listing lies."""
    return data_dir / "shards" / source / "listing.json"


def write_listing(spec: DataSpec, name: str, data_dir: Path, corpora: Path | None) -> Listing:
    """Lists a source and keeps the listing; raises ValueError as `repro.data.hub.list_source`."""
    listing = list_source(source_of(spec, name), corpora)
    listing.write(listing_path(data_dir, name))
    return listing


def identity_of(spec: DataSpec, listing: Listing, number: int, data_dir: Path) -> str:
    """Hex hash of what decides a shard's tokens: its files and their revision, column, tokenizer, split."""
    options = source_of(spec, listing.source).hub
    content = {
        "pipeline": PIPELINE_VERSION,
        "repo": listing.repo,
        "revision": listing.revision,
        "files": [[file.name, file.bytes, file.sha256] for file in listing.shard(number, options.shards)],
        "column": options.column,
        "tokenizer": sha256_of(data_dir / "tokenizer" / "tokenizer.json"),
        "end_of_document_id": read_origin(data_dir)["end_of_document_id"],
        "vocab_size": spec.tokenizer.vocab_size,
        "hold_out": spec.hold_out.model_dump(mode="json"),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_record(prefix: Path, identity: str) -> dict[str, Any] | None:
    """The record of a finished shard of this identity whose files have their recorded sizes; None for any other."""
    try:
        record = json.loads(prefix.with_suffix(".json").read_text(encoding="utf-8"))
        whole = record["identity"] == identity and all(
            (prefix.parent / name).stat().st_size == file["bytes"] for name, file in record["outputs"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if whole else None


def write_shard(
    spec: DataSpec, name: str, number: int, data_dir: Path, *, corpora: Path | None, say: Say = print
) -> dict[str, Any]:
    """Tokenises shard `number` of source `name`, unless it is finished; returns its record.

    Raises:
        ValueError: not listed yet, no such shard, no access, a file that is missing, damaged, without the column or
            without a row; names the source and the file.
    """
    source, origin = source_of(spec, name), read_origin(data_dir)
    listing = Listing.read(listing_path(data_dir, name))
    if not 0 <= number < source.hub.shards:
        raise ValueError(f"source {name}: no shard {number}; it has 0 to {source.hub.shards - 1}")
    prefix, identity = shard_prefix(data_dir, name, number), identity_of(spec, listing, number, data_dir)
    if record := read_record(prefix, identity):
        say(f"{prefix}: finished before, {record['train']['tokens']} training tokens")
        return record
    prefix.with_suffix(".json").unlink(missing_ok=True)
    tokenizer = load_tokenizer(data_dir)
    tokenizer.encode_special_tokens = True
    encoder = Encoder(tokenizer)
    say(f"{name} {number}: encoded by {encoder.name}")
    writers = {split: _Writer(Path(f"{prefix}_{split}"), spec.tokenizer.vocab_size) for split in SPLITS}
    files, scratch = [], prefix.with_suffix(".download")
    for file in (chosen := listing.shard(number, source.hub.shards)):
        path, digest = file_on_disk(source, listing, file, corpora=corpora, scratch=scratch)
        try:
            for texts in _batches(texts_of(path, source.hub.column)):
                _encode(texts, encoder, origin["end_of_document_id"], spec, writers)
        except ValueError as error:
            raise ValueError(f"source {name}: {error}") from error
        files.append({"name": file.name, "bytes": file.bytes, "sha256": digest})
        say(
            f"{name} {number}: {len(files)} of {len(chosen)} files, {writers['train'].tokens} training tokens"
        )
    outputs = {path.name: path for writer in writers.values() for path in writer.close()}
    record = {
        "source": name,
        "shard": number,
        "identity": identity,
        **{split: writer.counts() for split, writer in writers.items()},
        "files": files,
        "outputs": {k: {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for k, p in outputs.items()},
    }
    temporary = prefix.with_suffix(".json.writing")
    temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    temporary.replace(prefix.with_suffix(".json"))
    shutil.rmtree(scratch, ignore_errors=True)
    return record


class _Writer:
    """One .bin/.idx pair under temporary names, until `close`."""

    def __init__(self, prefix: Path, vocab_size: int) -> None:
        self._prefix = prefix
        prefix.parent.mkdir(parents=True, exist_ok=True)
        self._builder = builder_class()(f"{prefix}.bin.writing", dtype=token_dtype(vocab_size))
        self.documents = self.tokens = self.text_bytes = 0

    def add(self, tokens: np.ndarray, num_bytes: int) -> None:
        self._builder.add_document(tokens, [len(tokens)])
        self.documents += 1
        self.tokens += len(tokens)
        self.text_bytes += num_bytes

    def close(self) -> list[Path]:
        self._builder.finalize(f"{self._prefix}.idx.writing")
        for ending in ("bin", "idx"):
            Path(f"{self._prefix}.{ending}.writing").replace(f"{self._prefix}.{ending}")
        return [Path(f"{self._prefix}.{ending}") for ending in ("bin", "idx")]

    def counts(self) -> dict[str, int]:
        return {"documents": self.documents, "tokens": self.tokens, "text_bytes": self.text_bytes}


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encode(
    texts: list[str], encoder: Encoder, end: int, spec: DataSpec, writers: dict[str, _Writer]
) -> None:
    for text, ids in zip(texts, encoder.encode(texts), strict=True):
        raw = text.encode()
        key = hashlib.blake2b(raw.strip(), digest_size=16).hexdigest()
        split = "validation" if is_held_out(key, spec.hold_out) else "train"
        writers[split].add(np.append(ids, end), len(raw))
