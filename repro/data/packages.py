"""Packages of registries as files: fetched with the registry's own client, kept in a folder, held to their SHA-256.

    pypi                   pip download       keeps every version: version and SHA-256 stand in the configuration
    npm                    npm pack           likewise
    debian                 apt-get download   drops a version when a newer one comes
    debian-descriptions    apt-get update     likewise; descriptions of all packages in one language, one text

Debian's are pinned by a record of an earlier preparation (`repro.data.recorded_data`): what apt does not offer in
that very version, on Debian 12 or elsewhere, comes from Debian's archive of all versions (`repro.data.snapshot`).
Without a pin it is the newest version that apt offers.

No client needs root. Does not: install anything, or run a package's code.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from repro.data import snapshot
from repro.data.manifest import sha256_of
from repro.experiments.data_spec import SourceSpec


@dataclass(frozen=True)
class Pin:
    """A package's file as it was: its name as the client writes it (an epoch's colon as %3a) and hex SHA-256."""

    file: str
    sha256: str

    @property
    def version(self) -> str:
        """Debian's version, of a name PACKAGE_VERSION_ARCHITECTURE.deb; else the name itself."""
        parts = unquote(self.file).split("_")
        return parts[1] if self.file.endswith(".deb") and len(parts) == 3 else self.file


def pinned(source: SourceSpec, pin: Pin | None) -> SourceSpec:
    """The source, reading no other file than the pin's."""
    return source if pin is None else source.model_copy(update={"sha256": pin.sha256})


class NotOfferedError(ValueError):
    """Every place answered, and none has the very file."""


def download(
    source: SourceSpec,
    downloads: Path,
    *,
    registry: str,
    package: str,
    pin: Pin | None = None,
    say: Callable[[str], object] = str,
) -> Path:
    """The package's file, fetched unless it is in `downloads`; with the pin's SHA-256, or else the source's, if any.

    `say` is told where a fetched file came from.

    Raises:
        NotOfferedError: nobody has the file that the SHA-256 names.
        ValueError: the client is missing or failed, or Debian's archive cannot be reached.
    """
    sha256 = pin.sha256 if pin else source.sha256
    archive = fetched(downloads, registry=registry, package=package, sha256=sha256)
    if archive is not None:
        return archive
    folder = _folder(downloads, registry, package)
    other = fetched(downloads, registry=registry, package=package)
    tried = [f"{other} is truncated, altered or of another version"] if other else []
    downloads.mkdir(parents=True, exist_ok=True)
    what = f"{package} {pin.version if pin else source.version}"
    for place, files in _places(registry, package, source.version, pin):
        with tempfile.TemporaryDirectory(dir=downloads) as scratch:
            try:
                for file in files(Path(scratch)):
                    if sha256 is None or sha256_of(file) == sha256:
                        folder.mkdir(parents=True, exist_ok=True)
                        archive = folder / (pin.file if pin else file.name)
                        shutil.move(file, archive)
                        say(f"data: {source.name}: {archive.name} from {place}")
                        return archive
                    tried.append(f"{place} gave another file, of SHA-256 {sha256_of(file)[:16]}...")
            except snapshot.UnreachableError as error:
                raise ValueError(
                    f"source {source.name}: {what}: {'; '.join([*tried, str(error)])}. Is the network there? What "
                    "was fetched is kept: start the same command again"
                ) from None
            except ValueError as error:
                tried.append(str(error))
    if sha256 is None:
        raise ValueError(f"source {source.name}: {'; '.join(tried)}")
    raise NotOfferedError(f"source {source.name}: {what} (SHA-256 {sha256[:16]}...): {'; '.join(tried)}")


def fetched(downloads: Path, *, registry: str, package: str, sha256: str | None = None) -> Path | None:
    """The package's file when it was fetched before; with a SHA-256, the one that has it."""
    folder = _folder(downloads, registry, package)
    files = sorted(path for path in folder.glob("*") if path.is_file())
    return next((path for path in files if sha256 in (None, sha256_of(path))), None)


def _folder(downloads: Path, registry: str, package: str) -> Path:
    return downloads / registry / package.replace("/", "_")


def _places(
    registry: str, package: str, version: str, pin: Pin | None
) -> Iterator[tuple[str, Callable[[Path], Iterator[Path]]]]:
    """(name, function from a folder to files written into it) of each place to ask, in this order."""
    asked = f"{package}={pin.version}" if pin and registry == "debian" else package
    command = CLIENTS[registry](asked, version)
    yield registry, lambda folder: _by_client(registry, command, folder)
    if pin and registry == "debian":
        yield snapshot.URL, lambda folder: snapshot.packages(package, pin.file, folder)
    if pin and registry == "debian-descriptions":
        yield snapshot.URL, lambda folder: snapshot.descriptions(package, folder)


def _by_client(registry: str, command: list[str], folder: Path) -> Iterator[Path]:
    tool, words = command[0], " ".join(command)
    if registry == "debian-descriptions":
        tool, words = "apt-get", f"apt-get update for Translation-{command[-1]}"
    if shutil.which(tool) is None:
        raise ValueError(f"fetching from {registry} needs the command {tool!r}")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = sorted(path for path in folder.iterdir() if path.is_file())
    if done.returncode or len(found) != 1:
        reason = (done.stderr.strip().splitlines() or ["nothing was fetched"])[-1]
        raise ValueError(f"{words} failed: {reason}")
    yield found[0]


def _debian(package: str, version: str) -> list[str]:
    # The configuration's version is words ("newest in Debian 12"); a pin's stands with the package: NAME=VERSION.
    return ["apt-get", "download", "-q", package]


def _pypi(package: str, version: str) -> list[str]:
    return [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"{package}=={version}"]


def _npm(package: str, version: str) -> list[str]:
    return ["npm", "pack", "--silent", f"{package}@{version}"]


# Into a folder of its own: the machine's package lists stay as they are.
_UPDATE = """
apt-get indextargets --format '$(RELEASE)' | grep -qx bookworm || { echo 'apt has no source bookworm' >&2; exit 1; }
mkdir lists lists/partial
apt-get update -q -o Dir::State::Lists=$PWD/lists -o Acquire::Languages=$1 >&2
/usr/lib/apt/apt-helper cat-file lists/*_bookworm_*_Translation-* > Translation-$1.text
rm -r lists
"""


def _descriptions(language: str, version: str) -> list[str]:
    return ["sh", "-ec", _UPDATE, "sh", language]


CLIENTS = {"debian": _debian, "pypi": _pypi, "npm": _npm, "debian-descriptions": _descriptions}
