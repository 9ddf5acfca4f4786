"""From finished shards to a prepared folder: the validation set and the manifest.

    FOLDER/<category>_validation.{bin,idx}   held-out documents of the category's shards, mixed
    FOLDER/manifest.json                     the shards of each category, a checksum of each source; written last

A source's checksum is the SHA-256 over the names and SHA-256 of all its files: two preparations with equal checksums
read equal data sets. Held-out documents are mixed over sources and shards by a fixed permutation, because the
validation set of a run is the first windows of each category.

Does not: tokenise (`repro.data.shards`), or read the training tokens again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from repro.data.hub import Listing
from repro.data.indexed import IndexedTokens
from repro.data.manifest import read_manifest, verify_data, write_manifest
from repro.data.order import permutation
from repro.data.pretrained import read_origin, write_tokenizer
from repro.data.shards import (
    PIPELINE_VERSION,
    identity_of,
    listing_path,
    read_record,
    shard_prefix,
    write_listing,
    write_shard,
)
from repro.data.token_files import builder_class, token_dtype
from repro.experiments.data_spec import DataSpec, SourceSpec

Say = Callable[[str], None]


def prepare_shards(
    spec: DataSpec, data_dir: Path, *, corpora: Path | None, say: Say = print
) -> dict[str, Any]:
    """Every step in this process, one after the other; returns the manifest.

    What is there already is kept: listings, finished shards. The workflow runs the same steps as jobs.

    Raises:
        ValueError: as the steps.
    """
    write_tokenizer(spec.tokenizer, data_dir, corpora)
    for source in spec.sources:
        if not listing_path(data_dir, source.name).is_file():
            write_listing(spec, source.name, data_dir, corpora)
        for number in range(source.hub.shards):
            write_shard(spec, source.name, number, data_dir, corpora=corpora, say=say)
    return assemble(spec, data_dir, say=say)


def assemble(spec: DataSpec, data_dir: Path, *, say: Say = print) -> dict[str, Any]:
    """Writes the validation files and the manifest; returns it.

    Raises:
        ValueError: a shard is not finished (or is of other text, tokenizer or split than configured), or a category
            has no held-out document.
    """
    records = {source.name: _records(spec, source, data_dir) for source in spec.sources}
    categories = {}
    for category in spec.categories:
        members = [source.name for source in spec.sources if source.category == category]
        shards = [record for name in members for record in records[name]]
        held_out = _write_validation(spec, category, shards, data_dir)
        training = {key: sum(record["train"][key] for record in shards) for key in _COUNTS}
        listed = [{"name": _name(r, "train"), "tokens": r["train"]["tokens"]} for r in shards]
        categories[category] = {"train": {**training, "shards": listed}, "validation": held_out}
        say(f"data: {category}: {training['tokens']} training and {held_out['tokens']} held-out tokens")
    content = {
        "name": spec.name,
        "identity": _identity(records),
        "tokenizer": {"vocab_size": spec.tokenizer.vocab_size, **read_origin(data_dir)},
        "categories": categories,
        "sources": [_origin(source, records[source.name], data_dir) for source in spec.sources],
    }
    outputs = {
        f"shards/{source}/{name}": file
        for source, found in records.items()
        for record in found
        for name, file in record["outputs"].items()
    }
    write_manifest(data_dir, content, recorded=outputs)
    verify_data(data_dir)
    return read_manifest(data_dir)


_COUNTS = ("documents", "tokens", "text_bytes")


def _records(spec: DataSpec, source: SourceSpec, data_dir: Path) -> list[dict[str, Any]]:
    listing = Listing.read(listing_path(data_dir, source.name))
    found = []
    for number in range(source.hub.shards):
        prefix = shard_prefix(data_dir, source.name, number)
        record = read_record(prefix, identity_of(spec, listing, number, data_dir))
        if record is None:
            raise ValueError(
                f"{prefix}.json: the shard is not finished, or was made from something else; make it again"
            )
        found.append(record)
    return found


def _name(record: dict[str, Any], split: str) -> str:
    """A shard's token file relative to the data folder, without ending."""
    return f"shards/{record['source']}/{record['shard']:04d}_{split}"


def _write_validation(
    spec: DataSpec, category: str, shards: list[dict[str, Any]], data_dir: Path
) -> dict[str, int]:
    files = [IndexedTokens(data_dir / _name(record, "validation")) for record in shards]
    places = [(file, document) for file in files for document in range(len(file))]
    if not places:
        raise ValueError(f"category {category}: no document is held out; raise hold_out.fraction")
    prefix = data_dir / f"{category}_validation"
    builder = builder_class()(f"{prefix}.bin", dtype=token_dtype(spec.tokenizer.vocab_size))
    for place in permutation(len(places), "validation", spec.hold_out.salt, category):
        file, document = places[int(place)]
        builder.add_document(file[document], [len(file[document])])
    builder.finalize(f"{prefix}.idx")
    return {key: sum(record["validation"][key] for record in shards) for key in _COUNTS}


def _origin(source: SourceSpec, records: list[dict[str, Any]], data_dir: Path) -> dict[str, Any]:
    listing = Listing.read(listing_path(data_dir, source.name))
    files = sorted(
        (file["name"], file["sha256"], file["bytes"]) for record in records for file in record["files"]
    )
    lines = "".join(f"{digest}  {name}\n" for name, digest, _ in files)
    return {
        **source.model_dump(
            mode="json", include={"name", "category", "kind", "version", "licence", "origin"}
        ),
        "repo": listing.repo,
        "revision": listing.revision,
        "files": len(files),
        "file_bytes": sum(size for *_, size in files),
        "files_sha256": hashlib.sha256(lines.encode()).hexdigest(),
        "documents": sum(
            record[split]["documents"] for record in records for split in ("train", "validation")
        ),
        "text_bytes": sum(
            record[split]["text_bytes"] for record in records for split in ("train", "validation")
        ),
    }


def _identity(records: dict[str, list[dict[str, Any]]]) -> str:
    shards = [record["identity"] for found in records.values() for record in found]
    return hashlib.sha256("\n".join([str(PIPELINE_VERSION), *shards]).encode()).hexdigest()
