"""Reads the sources that a data configuration names: every reader yields documents in a fixed order.

    kind                what                                                options
    embedded            a text shipped in repro/data/corpora                file
    stdlib_code         modules of the running Python's standard library    modules (globs below the library folder)
    pydoc_topics        the language reference shipped for `help()`         -
    package_docstrings  docstrings of an installed package                  package, folders (globs)
    generated           question-answer items of reasoning-gym              tasks {name: count}, seed
    archive             a package fetched from a registry                   see repro.data.fetch
    local_text          text files that you have, one document each         files (globs)
    local_jsonl         text that you have: lines {"text": ...} (.gz, .xz)  files (globs)

What comes with the installation depends on its versions: these are recorded in the manifest (`version_of`) and the
text's hash with them, rather than failing on a machine with a newer Python. Embedded and fetched files have a SHA-256
in the configuration, and a file that has another one is refused.

Does not: clean, split, or cap the size.
"""

from __future__ import annotations

import ast
import glob
import gzip
import importlib.metadata
import importlib.util
import inspect
import json
import lzma
import platform
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from repro.data.document import Document
from repro.data.fetch import read_archive
from repro.data.manifest import sha256_of
from repro.data.packages import CLIENTS, Pin, download, fetched
from repro.experiments.data_spec import SourceSpec
from repro.experiments.errors import nearest

CORPORA = Path(__file__).parent / "corpora"
#: Characters; shorter docstrings say little more than a name does.
MIN_DOCSTRING = 300

Pairs = Iterator[tuple[str, str]]  # (name, text) of each document


def read_source(source: SourceSpec, downloads: Path) -> list[Document]:
    """All documents of a source, uncleaned; `downloads` keeps what had to be fetched.

    Raises:
        ValueError: unknown kind or option; a file that is missing, truncated or altered; a package that is not
            installed; a source without any document. The message names the source.
    """
    if source.kind not in READERS:
        raise ValueError(f"source {source.name}: unknown kind {source.kind!r}{nearest(source.kind, READERS)}")
    reader, style = READERS[source.kind]
    try:
        inspect.signature(reader).bind(source, downloads, **source.options)
    except TypeError as error:
        raise ValueError(f"source {source.name}: options do not fit kind {source.kind!r}: {error}") from error
    if source.options.get("extract") == "code":
        style = "code"
    documents = [
        Document(source.name, source.category, name, text, style)
        for name, text in reader(source, downloads, **source.options)
    ]
    if not documents:
        raise ValueError(f"source {source.name}: not one document was found")
    return documents


def version_of(source: SourceSpec) -> str:
    """The version that will be read: of the installation for what comes with it, else the configured one.

    Raises:
        ValueError: the source comes from a package that is not installed.
    """
    if source.kind in ("stdlib_code", "pydoc_topics"):
        return f"Python {platform.python_version()}"
    package = {"generated": "reasoning-gym", "package_docstrings": source.options.get("package")}.get(
        source.kind
    )
    if package is None:
        return source.version
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(f"source {source.name}: package {package!r} is not installed") from None


def archive_of(
    source: SourceSpec, downloads: Path, pin: Pin | None = None, say: Callable[[str], object] = str
) -> Path | None:
    """The package that a fetched source comes from, downloaded when it is not there; None for other kinds.

    Raises:
        ValueError: the download failed, or gave another package than the pin or the configuration names.
    """
    if source.kind != "archive":
        return None
    registry, package = _package_of(source)
    return download(source, downloads, registry=registry, package=package, pin=pin, say=say)


def origin_file(source: SourceSpec, downloads: Path) -> dict[str, str]:
    """Name and SHA-256 of the package that a fetched source came from; nothing for other kinds."""
    if source.kind != "archive":
        return {}
    registry, package = _package_of(source)
    archive = fetched(downloads, registry=registry, package=package, sha256=source.sha256)
    return {} if archive is None else {"file": archive.name, "file_sha256": sha256_of(archive)}


def _package_of(source: SourceSpec) -> tuple[str, str]:
    """Registry and package of a fetched source; raises ValueError for a registry that there is not."""
    for key in ("registry", "package"):
        if key not in source.options:
            raise ValueError(f"source {source.name}: options: key {key!r} is missing")
    registry, package = source.options["registry"], source.options["package"]
    if registry not in CLIENTS:
        raise ValueError(f"source {source.name}: unknown registry {registry!r}{nearest(registry, CLIENTS)}")
    return registry, package


def check_file(source: SourceSpec, path: Path) -> None:
    """Refuse a file that is missing or whose SHA-256 is not the source's.

    Raises:
        ValueError: names the source and the file.
    """
    if not path.is_file():
        raise ValueError(f"source {source.name}: {path} is missing")
    found = sha256_of(path)
    if source.sha256 is not None and found != source.sha256:
        raise ValueError(
            f"source {source.name}: {path} is truncated or altered: {path.stat().st_size} bytes with SHA-256 "
            f"{found[:16]}..., expected {source.sha256[:16]}..."
        )


def _embedded(source: SourceSpec, downloads: Path, file: str) -> Pairs:
    path = CORPORA / file
    check_file(source, path)
    for line in lzma.decompress(path.read_bytes()).decode("utf-8").splitlines():
        document = json.loads(line)
        yield document["id"], document["text"]


def _stdlib_code(source: SourceSpec, downloads: Path, modules: list[str]) -> Pairs:
    library = Path(sysconfig.get_path("stdlib"))
    for pattern in modules:
        # A module that another Python version dropped or renamed is no error: the manifest records what was read.
        for path in sorted(library.glob(pattern)):
            yield path.relative_to(library).as_posix(), path.read_text(encoding="utf-8", errors="replace")


def _pydoc_topics(source: SourceSpec, downloads: Path) -> Pairs:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield name, topics[name]


def _package_docstrings(source: SourceSpec, downloads: Path, package: str, folders: list[str]) -> Pairs:
    """Docstrings in the source files, read without importing the package."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"source {source.name}: package {package!r} is not installed")
    root = Path(next(iter(found.submodule_search_locations)))
    for pattern in folders:
        for path in sorted(root.glob(pattern)):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                    text = ast.get_docstring(node) or ""
                    if len(text) >= MIN_DOCSTRING:
                        label = getattr(node, "name", "")
                        line = getattr(node, "lineno", 0)
                        yield f"{path.relative_to(root).as_posix()}:{label}:{line}", f"{label}\n\n{text}"


def _generated(source: SourceSpec, downloads: Path, tasks: dict[str, int], seed: int) -> Pairs:
    """ "Question: ...\\nAnswer: ..." items; where the generator writes out its steps, they precede the answer."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise ValueError(
            f"source {source.name}: needs the package reasoning-gym (extra 'workflow' of this project)"
        ) from error
    for task, count in tasks.items():
        items: Any = reasoning_gym.create_dataset(task, size=count, seed=seed)
        for index in range(count):
            item = items[index]
            answer = item["metadata"].get("answer_cot") or item["answer"]
            yield f"{task}/{index}", f"Question: {item['question'].strip()}\nAnswer: {str(answer).strip()}"


def _archive(source: SourceSpec, downloads: Path, registry: str, package: str, **options: Any) -> Pairs:
    return read_archive(source, downloads, registry=registry, package=package, **options)


def _local_files(source: SourceSpec, files: list[str]) -> list[Path]:
    """Files that match, in the order of their names."""
    if isinstance(files, str):
        raise ValueError(f"source {source.name}: options: files is a list of globs; write files: [{files!r}]")
    found = {Path(name) for pattern in files for name in glob.glob(pattern, recursive=True)}
    paths = sorted(path for path in found if path.is_file())
    if not paths:
        raise ValueError(f"source {source.name}: no file matches {', '.join(files)}; {source.origin}")
    return paths


def _local_text(source: SourceSpec, downloads: Path, files: list[str]) -> Pairs:
    """Whole files that are on this machine. A document's name, which decides whether it is held out, is its path."""
    for path in _local_files(source, files):
        try:
            yield path.as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"source {source.name}: {path} is not UTF-8 text ({error})") from error


def _local_jsonl(source: SourceSpec, downloads: Path, files: list[str]) -> Pairs:
    """Lines `{"text": ..., "id": ...}` of files that are on this machine; `id` is optional."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
    for path in _local_files(source, files):
        with openers.get(path.suffix, open)(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    document = json.loads(line)
                    yield str(document.get("id", f"{path.name}:{number}")), document["text"]
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise ValueError(
                        f"source {source.name}: {path}, line {number}: not a JSON object with a text ({error})"
                    ) from error


READERS: dict[str, tuple[Callable[..., Pairs], str]] = {
    "embedded": (_embedded, "prose"),
    "stdlib_code": (_stdlib_code, "code"),
    "pydoc_topics": (_pydoc_topics, "prose"),
    "package_docstrings": (_package_docstrings, "code"),
    "generated": (_generated, "generated"),
    "archive": (_archive, "prose"),
    "local_text": (_local_text, "prose"),
    "local_jsonl": (_local_jsonl, "prose"),
}
