"""A prepared data folder as a few compressed files that travel, and back again with numpy and the standard library.

    python -m repro.data.parts pack   FOLDER --out PARTS [--max-megabytes 52]
    python -m repro.data.parts unpack PARTS... --out FOLDER        (every call may bring further parts)

    PARTS/part_00.bin ...   chunks of the folder's files, each an .xz stream of its own, back to back
    PARTS/parts.json        the list: files (size, SHA-256), chunks (file, offset, part, place, sizes), SHA-256 of the
                            parts, and the manifest's SHA-256; the same list stands at the end of every part

A chunk is 4 MB of a file, so that unpacking keeps as many processes busy as the machine has cores. Token files hold
two bytes a token: low and high bytes are compressed apart, which saves a tenth. `unpack` writes what the parts at
hand hold, and says what is still missing; the folder is complete when every file has its recorded SHA-256, and its
manifest is written last. Token counts and licences stand in the manifest.

Does not: prepare or fetch anything.
"""

from __future__ import annotations

import json
import lzma
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from repro.data.manifest import MANIFEST, sha256_of, verify_data
from repro.options import OneLineParser, amount, whole_number

LIST = "parts.json"
SCHEMA = 1
CHUNK_BYTES = 4_000_000
#: A part ends with the list, its length in 8 bytes, and this.
_MAGIC = b"NVFP4PRT"
#: Compression level of xz: 6 and above save a fiftieth of the bytes for twice the time.
_PRESET = 5

Chunk = dict[str, Any]


def pack(folder: Path, out: Path, *, max_bytes: int, processes: int) -> list[Path]:
    """Write the parts of a prepared folder, each at most `max_bytes`; returns them with the list last.

    Raises:
        ValueError: the folder is not complete and intact, or a chunk alone is larger than a part.
    """
    verify_data(folder, checksums=True)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)} for name in names
    }
    jobs = [
        (str(folder / name), offset, name.endswith(".bin"))
        for name, content in files.items()
        for offset in range(0, max(1, content["bytes"]), CHUNK_BYTES)
    ]
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("part_*.bin"), out / LIST):
        old.unlink(missing_ok=True)
    chunks: list[Chunk] = []
    bodies: list[bytearray] = [bytearray()]
    room = max_bytes - 200_000  # for the list
    with _pool(processes) as pool:
        for (path, offset, split), packed in zip(jobs, pool.map(_compress, jobs, chunksize=4), strict=True):
            if len(packed) > room:
                raise ValueError(f"{out}: parts of {max_bytes} bytes are too small for one chunk")
            if len(bodies[-1]) + len(packed) > room:
                bodies.append(bytearray())
            name = Path(path).relative_to(folder).as_posix()
            place = {"part": len(bodies) - 1, "at": len(bodies[-1]), "bytes": len(packed)}
            chunks.append({"file": name, "offset": offset, "split": split, **place})
            bodies[-1] += packed
    content = {
        "schema": SCHEMA,
        "manifest_sha256": files[MANIFEST]["sha256"],
        "files": files,
        "chunks": chunks,
    }
    text = json.dumps(content, separators=(",", ":")).encode()
    parts = []
    for number, body in enumerate(bodies):
        path = out / f"part_{number:02d}.bin"
        path.write_bytes(bytes(body) + text + len(text).to_bytes(8, "little") + _MAGIC)
        parts.append(path)
    sums = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in parts}
    (out / LIST).write_text(json.dumps({"parts": sums, **content}, indent=1) + "\n", encoding="utf-8")
    return [*parts, out / LIST]


def unpack(parts: Iterable[Path], folder: Path, *, processes: int) -> list[str]:
    """Write what the parts hold into `folder`; returns the names of files that are not complete yet, [] at the end.

    The same part may come twice. Raises:
        ValueError: a part is truncated or altered, belongs to other data than what is in the folder, or a completed
            file has not its recorded SHA-256.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / ".unpacked.json"
    state: dict[str, Any] = (
        json.loads(note.read_text()) if note.is_file() else {"manifest": None, "chunks": []}
    )
    content: dict[str, Any] | None = None
    for path in parts:
        content = _list_of(path)
        if state["manifest"] not in (None, content["manifest_sha256"]):
            raise ValueError(f"{path}: a part of other data than {folder} holds; unpack into an empty folder")
        state["manifest"] = content["manifest_sha256"]
        number = int(path.stem.removeprefix("part_"))
        done = set(state["chunks"])
        jobs = []
        for index, chunk in enumerate(content["chunks"]):
            if chunk["part"] == number and index not in done:
                _make_room(folder / chunk["file"], content["files"][chunk["file"]]["bytes"])
                jobs.append((str(path), str(folder), chunk))
                done.add(index)
        with _pool(processes) as pool:
            list(pool.map(_write, jobs, chunksize=2))
        state["chunks"] = sorted(done)
        whole = note.with_suffix(".writing")
        whole.write_text(json.dumps(state), encoding="utf-8")
        whole.replace(note)
    if content is None:
        raise ValueError("no part was given")
    present = set(state["chunks"])
    missing = {chunk["file"] for index, chunk in enumerate(content["chunks"]) if index not in present}
    if missing:
        return sorted(missing)
    for name, recorded in content["files"].items():
        path = folder / (_HIDDEN if name == MANIFEST else name)
        if path.stat().st_size != recorded["bytes"] or sha256_of(path) != recorded["sha256"]:
            note.unlink()
            raise ValueError(f"{path}: not what was packed (its SHA-256 differs); unpack every part again")
    (folder / _HIDDEN).replace(folder / MANIFEST)
    note.unlink()
    return []


#: The manifest's name until everything is there: a folder without a manifest is not taken for data.
_HIDDEN = ".manifest.unpacked.json"


def _pool(processes: int) -> ProcessPoolExecutor:
    """Processes that end at Ctrl-C, which reaches them too, without a traceback each."""
    return ProcessPoolExecutor(processes, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_DFL))


def _compress(job: tuple[str, int, bool]) -> bytes:
    path, offset, split = job
    with open(path, "rb") as file:
        file.seek(offset)
        raw = file.read(CHUNK_BYTES)
    if split:
        raw = np.frombuffer(raw, np.uint8).reshape(-1, 2).T.tobytes()
    return lzma.compress(raw, preset=_PRESET)


def _write(job: tuple[str, str, Chunk]) -> None:
    part, folder, chunk = job
    with open(part, "rb") as file:
        file.seek(chunk["at"])
        packed = file.read(chunk["bytes"])
    try:
        raw = lzma.decompress(packed)
    except lzma.LZMAError as error:
        raise ValueError(f"{part}: truncated or altered ({error}); bring this part again") from None
    if chunk["split"]:
        raw = np.frombuffer(raw, np.uint8).reshape(2, -1).T.tobytes()
    name = _HIDDEN if chunk["file"] == MANIFEST else chunk["file"]
    with open(Path(folder) / name, "r+b") as file:
        file.seek(chunk["offset"])
        file.write(raw)


def _make_room(path: Path, size: int) -> None:
    path = path.with_name(_HIDDEN) if path.name == MANIFEST else path
    if not path.is_file() or path.stat().st_size != size:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)


def _list_of(path: Path) -> dict[str, Any]:
    """The list at the end of a part."""
    try:
        with path.open("rb") as file:
            file.seek(-16, os.SEEK_END)
            tail = file.read(16)
            length = int.from_bytes(tail[:8], "little")
            if tail[8:] != _MAGIC:
                raise ValueError("its end is missing")
            file.seek(-16 - length, os.SEEK_END)
            content = json.loads(file.read(length))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: truncated or no part of packed data ({error})") from None
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{path}: packed by another version of this program")
    return content


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when done, 3 when parts are still missing, 2 with one line on stderr for an error, 130 when
    stopped (Ctrl-C)."""
    parser = OneLineParser(prog="python -m repro.data.parts", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="a prepared folder into parts")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--max-megabytes", type=amount("MiB"), default=52.0, help="of one part (MiB)")
    unpacking = commands.add_parser("unpack", help="parts into a folder; further parts may follow")
    unpacking.add_argument("parts", type=Path, nargs="+")
    for command in (packing, unpacking):
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--processes", type=whole_number(), default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "pack":
            max_bytes = int(chosen.max_megabytes * 2**20)
            for path in pack(chosen.folder, chosen.out, max_bytes=max_bytes, processes=chosen.processes):
                print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
            return 0
        missing = unpack(chosen.parts, chosen.out, processes=chosen.processes)
    except (ValueError, OSError) as error:  # OSError: disk full, no permission
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{chosen.out}: stopped, not complete; run again to {chosen.command} it", file=sys.stderr)
        return 130
    print(f"{chosen.out}: " + (f"parts still missing for {', '.join(missing)}" if missing else "complete"))
    return 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
