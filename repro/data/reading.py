"""Reads and cleans all sources of a configuration: one by one, or several at a time with a kept copy of each.

A configuration that fetches packages is large: its sources are read by two processes, and each source's cleaned
documents are kept as one JSON line a document in `downloads/cleaned/`, under a name that holds the hash of all they
depend on. So a preparation that was stopped goes on with the next source, and a changed cap reads one source again.

Does not: split or compare documents, or keep anything of a configuration that needs no download.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from repro.data.clean import clean
from repro.data.document import Document
from repro.data.manifest import sha256_of
from repro.data.packages import Pin, pinned
from repro.data.sources import archive_of, read_source, version_of
from repro.experiments.data_spec import DataSpec, SourceSpec

#: Raised when the same source gives other cleaned documents; part of the kept copies' names.
READING_VERSION = 1
PROCESSES = 2


def read_sources(
    spec: DataSpec, downloads: Path, *, say: Callable[[str], None], pins: Mapping[str, Pin] = {}
) -> Iterator[tuple[SourceSpec, list[Document]]]:
    """Each source with its cleaned documents, in the configuration's order; `pins` name files of fetched sources.

    Raises:
        ValueError: as `repro.data.sources.read_source`.
    """
    if not any(source.kind == "archive" for source in spec.sources):
        for source in spec.sources:
            yield source, clean(read_source(source, downloads))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        # The largest packages first, so that the two processes end at about the same time.
        order = sorted(spec.sources, key=lambda source: -(source.max_bytes or 0))
        coming = {
            source.name: pool.submit(kept_copy, source, downloads, pins.get(source.name)) for source in order
        }
        try:
            for source in spec.sources:
                path = coming[source.name].result()
                documents = list(_documents(path, source))
                say(f"data: {source.name}: {len(documents)} documents, {path.stat().st_size / 1e6:.1f} MB")
                yield source, documents
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def kept_copy(source: SourceSpec, downloads: Path, pin: Pin | None = None) -> Path:
    """The file of the source's cleaned documents, made unless it is there.

    Raises:
        ValueError: as `repro.data.sources.read_source`.
    """
    archive = archive_of(source, downloads, pin)
    parts = [
        READING_VERSION,
        source.model_dump(mode="json"),
        version_of(source),
        archive and sha256_of(archive),
    ]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    path = downloads / "cleaned" / f"{source.name}-{key}.jsonl"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".writing")
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            for document in clean(read_source(pinned(source, pin), downloads)):
                file.write(json.dumps([document.name, document.style, document.text], ensure_ascii=False))
                file.write("\n")
        temporary.replace(path)
    return path


def _documents(path: Path, source: SourceSpec) -> Iterator[Document]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            name, style, text = json.loads(line)
            yield Document(source.name, source.category, name, text, style)
