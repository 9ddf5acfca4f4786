"""The data that recorded runs are trained on: what it was made from, and whether a prepared folder is the same.

`recorded/<name>/data_manifest.json` is the manifest of the data of all records of a tier. It pins Debian's packages,
of which a configuration names no version, to the files that were read (the configuration itself pins those of PyPI
and npm). A prepared folder is the recorded data if its manifest is that file, byte for byte.

Does not: decide what a folder's identity is; pins are no part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.data.packages import NotOfferedError, Pin
from repro.data.sources import archive_of, version_of
from repro.experiments.data_spec import DataSpec
from repro.experiments.errors import nearest, validate

#: Sources told by name in one line, and with all that was tried.
_MOST_NAMES = 4
_MOST_TOLD = 2


@dataclass(frozen=True)
class RecordedData:
    """The recorded manifest of the data that `spec` configures; `sha256` of its file is what the records name."""

    path: Path
    content: Mapping[str, Any]
    sha256: str
    spec: DataSpec

    @classmethod
    def find(cls, recorded: Path | None, spec: DataSpec) -> RecordedData | None:
        """What is recorded below the folder `recorded`; None without a folder or a record of such data in it.

        Raises ValueError when the file is damaged.
        """
        path = recorded / spec.name / "data_manifest.json" if recorded else None
        if path is None or not path.is_file():
            return None
        text = path.read_bytes()
        try:
            content = json.loads(text)
            {source["name"]: source["version"] for source in content["sources"]}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: truncated or altered ({error!r}); `git checkout {path}`") from None
        return cls(path, content, hashlib.sha256(text).hexdigest(), spec)

    @property
    def sources(self) -> dict[str, dict[str, Any]]:
        """Name -> version, file, hashes and sizes of each source."""
        return {source["name"]: source for source in self.content["sources"]}

    def pins(self, spec: DataSpec) -> dict[str, Pin]:
        """Source -> the file it was made from, for fetched sources whose file the configuration does not name."""
        pins = {}
        for source in spec.sources:
            found = self.sources.get(source.name, {})
            if source.kind != "archive" or source.sha256 or "file_sha256" not in found:
                continue
            package = source.options.get("package")
            if found["file"].startswith(f"{package}_") or found["file"] == f"Translation-{package}.text":
                pins[source.name] = Pin(found["file"], found["file_sha256"])
        return pins

    def tokens_per_cent(self, names: Iterable[str]) -> float:
        """About how much of the recorded training tokens is of these sources.

        A category's tokens are known; they are divided by the sources' clean text, up to their caps.
        """
        caps = {source.name: source.max_bytes for source in self.spec.sources}
        num_bytes = {
            name: min(found["text_bytes"], caps.get(name) or found["text_bytes"])
            for name, found in self.sources.items()
        }
        total: dict[str, int] = {}
        for name, found in self.sources.items():
            total[found["category"]] = total.get(found["category"], 0) + num_bytes[name]
        tokens = {name: sides["train"]["tokens"] for name, sides in self.content["categories"].items()}
        of_names = sum(
            tokens[found["category"]] * num_bytes[name] / total[found["category"]]
            for name, found in self.sources.items()
            if name in set(names)
        )
        return 100 * of_names / sum(tokens.values())

    def against(self, manifest: Mapping[str, Any], sha256: str) -> str:
        """One line: whether a prepared folder is the recorded data, and what of it is not."""
        if sha256 == self.sha256:
            return f"it is the recorded data: its manifest is {self.path}"
        here = {source["name"]: source for source in manifest["sources"]}
        missing = [name for name in self.sources if name not in here]
        other = [
            name
            for name, found in self.sources.items()
            if name in here and here[name]["text_sha256"] != found["text_sha256"]
        ]
        added = [name for name in here if name not in self.sources]
        told = [
            f"{len(names)} of {len(self.sources)} sources {verb} (about {self.tokens_per_cent(names):.1f} % of "
            f"its training tokens): {_listed(names)}"
            for verb, names in (("missing", missing), ("of other text", other))
            if names
        ]
        told += [f"{len(added)} sources that it does not have: {_listed(added)}"] if added else []
        told = told or ["the sources' texts are equal, what was made of them is not"]
        return (
            f"it is NOT the recorded data of {self.path}: {'; '.join(told)}. Losses on it do not compare with the "
            "records', which `repro compare` says too (other data)"
        )


def fetch(
    spec: DataSpec, downloads: Path, pins: Mapping[str, Pin], recorded: RecordedData | None, say: Callable
) -> None:
    """Every package of the configuration, into `downloads`: what can't be had is known before anything is read.

    Raises:
        ValueError: packages that nobody has, all of them in one line, with the share of the recorded tokens; or a
            place that cannot be reached.
    """
    gone: dict[str, str] = {}
    for source in spec.sources:
        if recorded and source.name in recorded.sources:
            then, now = recorded.sources[source.name]["version"], version_of(source)
            if now != then:
                say(f"data: {source.name}: {now}, of the recorded data {then}: it will be other data")
        try:
            archive_of(source, downloads, pins.get(source.name), say)
        except NotOfferedError as error:
            gone[source.name] = str(error)
    if not gone:
        return
    share = (
        f", about {recorded.tokens_per_cent(gone):.1f} % of the recorded training tokens" if recorded else ""
    )
    first = " | ".join(list(gone.values())[:_MOST_TOLD])
    more = f" | likewise {_listed(list(gone)[_MOST_TOLD:])}" if len(gone) > _MOST_TOLD else ""
    options = " ".join(f"--without {name}" for name in gone)
    raise ValueError(
        f"{len(gone)} of {len(spec.sources)} sources cannot be had{share}: {first}{more}. A file that you have goes "
        f"into {downloads}/REGISTRY/PACKAGE/; {options} prepares the rest, --recorded none takes Debian's newest: "
        "neither is the recorded data"
    )


def left_out(spec: DataSpec, names: Collection[str]) -> DataSpec:
    """The configuration without some sources, which makes it another one: its folder has another identity.

    Raises ValueError for a source that it does not have, or when a category of a blend is left without any.
    """
    known = [source.name for source in spec.sources]
    for name in names:
        if name not in known:
            raise ValueError(f"data {spec.name}: no source {name!r} to leave out{nearest(name, known)}")
    content = spec.model_dump(mode="json")
    content["sources"] = [source for source in content["sources"] if source["name"] not in names]
    return validate(DataSpec, content, f"data {spec.name} without {', '.join(names)}")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (
        f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    )
