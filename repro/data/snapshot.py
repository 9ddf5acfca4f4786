"""Debian's public archive of every version ever published, snapshot.debian.org: old packages and old lists.

Mirrors drop a version once a newer one is uploaded; the archive does not. Used of it, as it is documented:

    /mr/binary/PACKAGE/VERSION/binfiles?fileinfo=1    {"fileinfo": {HASH: [{"name": FILE, ...}, ...], ...}, ...}
    /file/HASH                                        the file's content
    /archive/debian/TIMESTAMP/dists/...               the mirror as it was at, or last before, that time

HASH is the archive's own name of a file, of 40 or 64 digits: it finds a file and proves nothing. Several files may
have one name. Asks for one file at a time, since the archive refuses who asks too much.

Does not: check a SHA-256 (repro.data.packages does), or need Debian's tools.
"""

from __future__ import annotations

import bz2
import json
import lzma
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote

URL = "https://snapshot.debian.org"
#: The time of the recorded preparation: Debian 12's lists of descriptions as they were then.
LISTS_OF = "20261130T070000Z"
#: Seconds without a byte, seconds for a file with all its attempts, and seconds to wait between attempts.
TIMEOUT_S = 60
LIMIT_S = 1800
WAITS_S = (2.0, 10.0, 30.0)

_AGENT = "nvfp4-pretraining-repro"
_UNPACKED = {"xz": lzma.decompress, "bz2": bz2.decompress}


class NotThereError(ValueError):
    """The archive answered, and does not have it."""


class UnreachableError(ValueError):
    """The archive did not answer, or not with the whole file, however often it was asked."""


def packages(package: str, file: str, folder: Path) -> Iterator[Path]:
    """Every file of that name that the archive has, one after the other; `file` as `apt-get download` names it.

    Raises:
        NotThereError, UnreachableError: see there.
    """
    _, version, ending = unquote(file).split("_")
    pool_name = f"{package}_{version.rpartition(':')[2]}_{ending}"  # on mirrors a file's name has no epoch
    where = f"/mr/binary/{quote(package, safe='')}/{quote(version, safe='')}/binfiles?fileinfo=1"
    answer = folder / "binfiles.json"
    _fetch(where, answer)
    try:
        places = json.loads(answer.read_text(encoding="utf-8"))["fileinfo"]
        hashes = [h for h, found in places.items() if any(place["name"] == pool_name for place in found)]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnreachableError(f"{URL}{where}: not the answer that is documented") from None
    if not hashes:
        raise NotThereError(f"{URL}: no file {pool_name} of this version")
    for name in hashes:
        _fetch(f"/file/{quote(name, safe='')}", folder / file)
        yield folder / file


def descriptions(language: str, folder: Path) -> Iterator[Path]:
    """The descriptions of Debian 12's packages in a language, as `LISTS_OF` has them, unpacked.

    Raises:
        NotThereError, UnreachableError: see there.
    """
    for ending, unpacked in _UNPACKED.items():
        path = f"/archive/debian/{LISTS_OF}/dists/bookworm/main/i18n/Translation-{language}.{ending}"
        packed, text = folder / f"packed.{ending}", folder / f"Translation-{language}.text"
        try:
            _fetch(path, packed)
        except NotThereError:
            continue
        packed_bytes = packed.read_bytes()
        try:
            content = unpacked(packed_bytes)
        except (
            OSError,
            ValueError,
            lzma.LZMAError,
        ):  # what the two libraries raise for other bytes than theirs
            raise UnreachableError(f"{URL}{path}: not a whole file of format {ending}") from None
        text.write_bytes(content)
        yield text
        return
    raise NotThereError(f"{URL}: no Translation-{language} of Debian 12 as of {LISTS_OF}")


def _fetch(path: str, target: Path) -> None:
    """Write an answer to a file, asking again after a lost connection, a short answer or a refusal for now."""
    end = time.monotonic() + LIMIT_S
    for attempt, wait in enumerate((*WAITS_S, None), 1):
        try:
            _fetch_once(path, target, end)
            return
        except HTTPError as error:
            if error.code in (404, 410):
                raise NotThereError(f"{URL}{path}: {error.code} {error.reason}") from None
            reason, again = f"{error.code} {error.reason}", error.code == 429 or error.code >= 500
        except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
            reason, again = str(getattr(error, "reason", error)) or type(error).__name__, True
        if not again or wait is None or time.monotonic() + wait > end:
            times = "once" if attempt == 1 else f"{attempt} times"
            raise UnreachableError(f"{URL}{path}: asked {times}, {reason}")
        time.sleep(wait)


def _fetch_once(path: str, target: Path, end: float) -> None:
    request = urllib.request.Request(URL + path, headers={"User-Agent": _AGENT})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer, target.open("wb") as file:
        while piece := answer.read(1 << 20):
            file.write(piece)
            if time.monotonic() > end:
                raise TimeoutError(f"not complete after {LIMIT_S} s")
        length = answer.headers.get("Content-Length")
        if length is not None and file.tell() != int(length):
            raise ConnectionError(f"the connection was lost after {file.tell()} of {length} bytes")
