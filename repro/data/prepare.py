"""From a data configuration to a prepared folder: the steps in their order.

    fetch -> read -> clean -> split -> deduplicate -> cap -> tokenizer -> token files -> evaluation items -> manifest

    FOLDER/<category>_{train,validation}.{bin,idx}   Megatron token files
    FOLDER/tokenizer/                                loads with transformers.AutoTokenizer
    FOLDER/evals/*.jsonl                             items for the evaluation tasks, from held-out text
    FOLDER/manifest.json                             sources, versions, licences, counts, SHA-256 of every file
    FOLDER/preparation.json                          when it ran and how long each step took

The split is decided by name before any text is compared. The manifest is written last; a folder that has one is
checked, not prepared again, unless what it was made from changed.

Does not: train, or know about phases (blends are of the run, not of the files).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from repro.data.dedup import deduplicate
from repro.data.disk import full_disk_named
from repro.data.document import Document
from repro.data.encode import Encoder
from repro.data.eval_items import write_eval_items
from repro.data.manifest import MANIFEST, manifest_sha256, read_manifest, verify_data, write_manifest
from repro.data.order import stable_key
from repro.data.packages import pinned
from repro.data.reading import read_sources
from repro.data.recorded_data import RecordedData, fetch, left_out
from repro.data.sources import origin_file, version_of
from repro.data.split import split
from repro.data.token_files import write_token_files
from repro.data.tokenizer import END_OF_DOCUMENT_ID, PADDING_ID, save_tokenizer, train_tokenizer
from repro.experiments.data_spec import DataSpec

#: Part of a folder's identity: to be raised when the same sources give other files.
PIPELINE_VERSION = 1

Say = Callable[[str], None]


def prepare(
    spec: DataSpec,
    data_dir: str | Path,
    *,
    downloads: str | Path | None = None,
    recorded: str | Path | None = None,
    without: Collection[str] = (),
    say: Say = print,
) -> dict[str, Any]:
    """Prepare a folder, or verify the one that is there; returns its manifest.

    Args:
        spec: the data configuration.
        data_dir: folder to fill; files of an earlier preparation in it are replaced.
        downloads: folder that keeps fetched packages; by default "downloads" beside data_dir.
        recorded: folder of the records ("recorded"): packages are those of the recorded data, where it is recorded,
            and what comes out is held against it. None: Debian's newest packages.
        without: sources to leave out.
        say: receives one line a step.

    Raises:
        ValueError: a source is missing, altered or empty; a prepared folder of the same configuration is damaged;
            the disk is full. The message names what and where.
    """
    data_dir = Path(data_dir)
    record = RecordedData.find(Path(recorded) if recorded else None, spec)
    spec = left_out(spec, without) if without else spec
    identity = identity_of(spec)
    if (data_dir / MANIFEST).is_file() and read_manifest(data_dir)["identity"] == identity:
        manifest = verify_data(data_dir, checksums=True)
        say(f"{data_dir}: already prepared, {len(manifest['files'])} files intact")
    else:
        with full_disk_named(data_dir):
            folder = Path(downloads or data_dir.parent / "downloads")
            manifest = _prepare(spec, data_dir, folder, record, identity, say)
    if record:
        say(f"{data_dir}: {record.against(manifest, manifest_sha256(data_dir))}")
    return manifest


def identity_of(spec: DataSpec) -> str:
    """Hex hash of what decides the files: sources, tokenizer, hold-out, versions read; not seed and blends."""
    content = spec.model_dump(mode="json", include={"name", "sources", "tokenizer", "hold_out"})
    for source in content["sources"]:
        if source["hold_out"] is None:  # as if it were not there: older folders stay valid
            del source["hold_out"]
    content["versions"] = {source.name: version_of(source) for source in spec.sources}
    content["pipeline"] = PIPELINE_VERSION
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class _Stopwatch:
    """Seconds of each step, and a line of progress."""

    def __init__(self, say: Say) -> None:
        self.seconds: dict[str, float] = {}
        self._say = say
        self._started = time.perf_counter()

    def lap(self, step: str, result: str) -> None:
        now = time.perf_counter()
        self.seconds[step] = round(now - self._started, 2)
        self._started = now
        self._say(f"data: {step}: {result} ({self.seconds[step]:.1f} s)")


def _prepare(
    spec: DataSpec, data_dir: Path, downloads: Path, record: RecordedData | None, identity: str, say: Say
) -> dict[str, Any]:
    watch = _Stopwatch(say)
    pins = record.pins(spec) if record else {}
    if any(source.kind == "archive" for source in spec.sources):
        fetch(spec, downloads, pins, record, say)  # before what an earlier preparation left is cleared away
        held = f"{len(pins)} as in {record.path}" if record else "Debian's newest, no record of this data"
        watch.lap("fetch packages", held)
    _clear(data_dir)

    documents: list[Document] = []
    sources: list[dict[str, Any]] = []
    for source, read in read_sources(spec, downloads, say=say, pins=pins):
        documents += read
        digest = hashlib.sha256("\0".join(document.text for document in read).encode()).hexdigest()
        sources.append(
            {
                **source.model_dump(mode="json", include={"name", "category", "kind", "licence", "origin"}),
                "version": version_of(source),
                **origin_file(pinned(source, pins.get(source.name)), downloads),
                "documents": len(read),
                "text_bytes": _num_bytes(read),
                "text_sha256": digest,
            }
        )
    watch.lap("read and clean", f"{len(documents)} documents, {_num_bytes(documents) / 1e6:.1f} MB")

    training, validation = split(
        documents, spec.hold_out, fractions={source.name: source.hold_out for source in spec.sources}
    )
    training, validation, dropped = deduplicate(training, validation)
    training = cap(training, {source.name: source.max_bytes for source in spec.sources})
    watch.lap("split and deduplicate", f"{len(training)} training and {len(validation)} held-out documents")

    tokenizer = train_tokenizer(training, **spec.tokenizer.model_dump())
    save_tokenizer(tokenizer, data_dir / "tokenizer")
    watch.lap("train tokenizer", f"{tokenizer.get_vocab_size()} entries")

    encoder = Encoder(tokenizer)
    say(f"data: encoded by {encoder.name}")
    categories: dict[str, dict[str, dict[str, int]]] = {}
    for category in spec.categories:
        counts = {}
        for name, part in (("train", training), ("validation", validation)):
            chosen = [document for document in part if document.category == category]
            if not chosen:
                count = sum(document.category == category for document in documents)
                raise ValueError(
                    f"category {category}: of {count} documents none is left for {name}. Whole documents are held "
                    f"out, by the hash of their names a share of {spec.hold_out.fraction:g}, and repeated ones "
                    "dropped: give it more and shorter documents, or a larger hold_out"
                )
            counts[name] = write_token_files(
                data_dir / f"{category}_{name}", chosen, encoder, vocab_size=tokenizer.get_vocab_size()
            )
        categories[category] = counts
    num_tokens = sum(counts["train"]["tokens"] for counts in categories.values())
    watch.lap("write token files", f"{num_tokens} training tokens in {len(categories)} categories")

    evals = write_eval_items(data_dir / "evals", training, validation)
    watch.lap("write evaluation items", ", ".join(f"{name} {count}" for name, count in evals.items()))

    content = {
        "name": spec.name,
        "identity": identity,
        "tokenizer": {
            "vocab_size": tokenizer.get_vocab_size(),
            "end_of_document_id": END_OF_DOCUMENT_ID,
            "padding_id": PADDING_ID,
        },
        "categories": categories,
        "dropped": dropped.as_dict(),
        "evals": evals,
        "sources": sources,
    }
    record = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": watch.seconds}
    (data_dir / "preparation.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    write_manifest(data_dir, content)
    return read_manifest(data_dir)


def cap(documents: list[Document], max_bytes: dict[str, int | None]) -> list[Document]:
    """At most max_bytes[source] of text from each source (None = all), chosen by the hash of the document's key."""
    left = dict(max_bytes)
    kept = set()
    for document in sorted(documents, key=lambda d: (int(stable_key("cap", d.key)), d.key)):
        budget = left[document.source]
        if budget is None or budget > 0:
            kept.add(document.key)
            if budget is not None:
                left[document.source] = budget - len(document.text.encode())
    return [document for document in documents if document.key in kept]


def _num_bytes(documents: Iterable[Document]) -> int:
    return sum(len(document.text.encode()) for document in documents)


def _clear(data_dir: Path) -> None:
    """Make the folder, without what an earlier preparation left; the manifest goes first, so that no moment has a
    manifest beside files that are not its own."""
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / MANIFEST).unlink(missing_ok=True)
    for pattern in ("*_train.bin", "*_train.idx", "*_validation.bin", "*_validation.idx", "preparation.json"):
        for path in data_dir.glob(pattern):
            path.unlink()
    for folder in ("tokenizer", "evals"):
        shutil.rmtree(data_dir / folder, ignore_errors=True)
