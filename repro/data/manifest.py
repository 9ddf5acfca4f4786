"""The manifest of a prepared data folder: what is in it, from what, and whether it is still intact.

`manifest.json` is written last, so a folder without one is an unfinished preparation. It is a pure function of the
configuration and the texts (times stand in `preparation.json`), so preparing again what was deleted gives the same
bytes and re-trains nothing.

Does not: prepare anything, or decide what a source is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
SCHEMA = 1


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_manifest(data_dir: str | Path) -> dict[str, Any]:
    """The manifest of a prepared folder.

    Raises:
        ValueError: the folder has none (preparation unfinished or elsewhere), or it is damaged.
    """
    path = Path(data_dir) / MANIFEST
    if not path.is_file():
        raise ValueError(
            f"{path}: no manifest; prepare the data first: python -m repro.data CONFIG --out {data_dir}"
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path}: the manifest is truncated or altered ({error}); prepare the data again"
        ) from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise ValueError(f"{path}: not a data manifest of schema {SCHEMA}; prepare the data again")
    return manifest


def manifest_sha256(data_dir: str | Path) -> str:
    """Names the data: the manifest holds the SHA-256 of every file. Equal for equal preparations.

    Raises ValueError as read_manifest.
    """
    read_manifest(data_dir)
    return sha256_of(Path(data_dir) / MANIFEST)


def write_manifest(
    data_dir: Path, content: dict[str, Any], *, recorded: Mapping[str, dict[str, Any]] | None = None
) -> None:
    """Write `content` plus the size and SHA-256 of every file in the folder; the last act of a preparation.

    `recorded`: {name: {"bytes", "sha256"}} of files that were hashed when they were written: terabytes, at scale.
    """
    files = dict(recorded or {})
    for path in sorted(p for p in data_dir.rglob("*") if p.is_file()):
        name = path.relative_to(data_dir).as_posix()
        if name not in (MANIFEST, "preparation.json", *files):
            files[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    temporary = data_dir / f".{MANIFEST}"
    text = json.dumps({"schema": SCHEMA, **content, "files": files}, indent=1, ensure_ascii=False)
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(data_dir / MANIFEST)


def verify_data(data_dir: str | Path, *, checksums: bool = False) -> dict[str, Any]:
    """Check a prepared folder and return its manifest.

    Sizes always (microseconds, done whenever training opens the folder); contents only with `checksums`.

    Raises:
        ValueError: names the first file that is missing, truncated, grown or altered.
    """
    data_dir = Path(data_dir)
    manifest = read_manifest(data_dir)
    for name, recorded in manifest["files"].items():
        path = data_dir / name
        if not path.is_file():
            raise ValueError(f"{path}: missing, but the manifest lists it; prepare the data again")
        size = path.stat().st_size
        if size != recorded["bytes"]:
            state = "truncated" if size < recorded["bytes"] else "altered"
            raise ValueError(
                f"{path}: {state}: {size} bytes, recorded were {recorded['bytes']}; prepare the data again"
            )
        if checksums and sha256_of(path) != recorded["sha256"]:
            raise ValueError(f"{path}: altered: its SHA-256 is not the recorded one; prepare the data again")
    return manifest
