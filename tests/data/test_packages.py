"""Pinned packages: from apt, else from Debian's archive of all versions, and never another file than recorded."""

import hashlib
import shutil
from pathlib import Path

import pytest

from repro.data import snapshot
from repro.data.packages import NotOfferedError, Pin, download
from repro.experiments.data_spec import SourceSpec

RIGHT, WRONG = b"the package as it was read" * 999, b"what came later" * 999
VERSION = "4:7.4+dfsg~1-2"
QUOTED = "4%3A7.4%2Bdfsg~1-2"
DEBIAN = {"registry": "debian", "package": "x-doc"}


def pin(content: bytes = RIGHT, file: str = "x-doc_4%3a7.4+dfsg~1-2_all.deb") -> Pin:
    return Pin(file, hashlib.sha256(content).hexdigest())


@pytest.fixture
def source() -> SourceSpec:
    fields = {
        "name": "it",
        "category": "wiki",
        "version": "newest in Debian 12",
        "licence": "x",
        "origin": "x",
    }
    return SourceSpec(kind="archive", **fields)


def apt_that_gives(content: bytes, tmp_path: Path, name: str = "x-doc_4%3a7.4+dfsg~1-2_all.deb") -> None:
    (tmp_path / "given").write_bytes(content)
    script = f'#!/bin/sh\necho "$*" > {tmp_path}/asked\ncp {tmp_path}/given {name}\n'
    (tmp_path / "tools" / "apt-get").write_text(script)


def test_what_apt_offers_is_taken_from_apt_in_the_pinned_version(source, archive, tmp_path):
    apt_that_gives(RIGHT, tmp_path)
    path = download(source, tmp_path / "d", **DEBIAN, pin=pin())
    assert (path.name, path.read_bytes()) == ("x-doc_4%3a7.4+dfsg~1-2_all.deb", RIGHT)
    assert (tmp_path / "asked").read_text().split() == ["download", "-q", f"x-doc={VERSION}"]
    assert not archive.asked


@pytest.mark.parametrize("apt", ["has no such version", "gives another file", "is not installed"])
def test_what_apt_does_not_offer_comes_from_the_archive(apt, source, archive, tmp_path, monkeypatch):
    archive.add_package("x-doc", VERSION, QUOTED, RIGHT)
    if apt == "gives another file":
        apt_that_gives(WRONG, tmp_path)
    if apt == "is not installed":
        which = shutil.which
        monkeypatch.setattr("shutil.which", lambda tool: None if tool == "apt-get" else which(tool))
    said = []
    path = download(source, tmp_path / "d", **DEBIAN, pin=pin(), say=said.append)
    assert (path.name, path.read_bytes()) == ("x-doc_4%3a7.4+dfsg~1-2_all.deb", RIGHT)
    assert said == [f"data: it: {path.name} from {snapshot.URL}"]
    asked = archive.asked.copy()
    assert download(source, tmp_path / "d", **DEBIAN, pin=pin()) == path
    assert archive.asked == asked, "what is there is not fetched again"
    assert [entry.name for entry in (tmp_path / "d").iterdir()] == ["debian"], "scratch folders were left"


def test_of_several_files_of_one_name_the_recorded_one_is_taken(source, archive, tmp_path):
    archive.add_package("x-doc", VERSION, QUOTED, WRONG, RIGHT)
    assert download(source, tmp_path, **DEBIAN, pin=pin()).read_bytes() == RIGHT


def test_an_older_download_is_no_obstacle_and_stays(source, archive, tmp_path):
    archive.add_package("x-doc", VERSION, QUOTED, RIGHT)
    other = tmp_path / "debian" / "x-doc" / "x-doc_9_all.deb"
    other.parent.mkdir(parents=True)
    other.write_bytes(WRONG)
    assert download(source, tmp_path, **DEBIAN, pin=pin()).read_bytes() == RIGHT
    assert other.read_bytes() == WRONG


@pytest.mark.parametrize(
    ("served", "told"),
    [
        (
            "another file",
            r"apt-get download -q x-doc=4:7\.4\+dfsg~1-2 failed: E: Unable.*gave another file, of SHA-256",
        ),
        ("another architecture", r"no file x-doc_7\.4\+dfsg~1-2_all\.deb of this version"),
        ("nothing", "404 Not Found"),
    ],
)
def test_a_file_that_nobody_has_is_refused_in_one_line(served, told, source, archive, tmp_path):
    if served == "another file":
        archive.add_package("x-doc", VERSION, QUOTED, WRONG)
    if served == "another architecture":
        archive.add_package("y-doc", VERSION, QUOTED, RIGHT)
        path = f"/mr/binary/{{}}/{QUOTED}/binfiles?fileinfo=1"
        archive.files[path.format("x-doc")] = archive.files[path.format("y-doc")]
    expected = rf"^source it: x-doc 4:7\.4\+dfsg~1-2 \(SHA-256 {pin().sha256[:16]}\.\.\.\): .*{told}[^\n]*$"
    with pytest.raises(NotOfferedError, match=expected):
        download(source, tmp_path / "d", **DEBIAN, pin=pin())
    assert not [path for path in (tmp_path / "d").rglob("*") if path.is_file()]


@pytest.mark.parametrize("faults", [["503"], ["429", "cut"], ["cut"]])
def test_an_archive_that_stumbles_is_asked_again(faults, source, archive, tmp_path):
    path = archive.add_package("x-doc", VERSION, QUOTED, RIGHT)
    archive.faults[path] = list(faults)
    assert download(source, tmp_path, **DEBIAN, pin=pin()).read_bytes() == RIGHT
    assert archive.asked[path] == 1 + len(faults)


@pytest.mark.parametrize(
    ("fault", "told", "times"),
    [
        ("503", "asked 3 times, 503", 3),
        ("cut", r"lost after \d+ of \d+ bytes", 3),
        ("403", "asked once, 403", 1),
    ],
)
def test_an_archive_that_goes_on_stumbling_is_not_taken_for_one_without_the_file(
    fault,
    told,
    times,
    source,
    archive,
    tmp_path,
):
    path = archive.add_package("x-doc", VERSION, QUOTED, RIGHT)
    archive.faults[path] = [fault] * 9
    with pytest.raises(
        ValueError, match=rf"source it: x-doc .*{told}.*start the same command again"
    ) as raised:
        download(source, tmp_path, **DEBIAN, pin=pin())
    assert not isinstance(raised.value, NotOfferedError)
    assert archive.asked[path] == times


def test_a_missing_network_is_told(source, archive, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "URL", "http://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"asked 3 times, .*refused\. Is the network there\?"):
        download(source, tmp_path, **DEBIAN, pin=pin())


def test_a_slow_answer_has_an_end(source, archive, tmp_path, monkeypatch):
    archive.add_package("x-doc", VERSION, QUOTED, RIGHT)
    monkeypatch.setattr(snapshot, "LIMIT_S", -1)
    with pytest.raises(ValueError, match="asked once, not complete after"):
        download(source, tmp_path, **DEBIAN, pin=pin())


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"fileinfo": []}'])
def test_an_answer_that_is_not_as_documented_is_told(answer, source, archive, tmp_path):
    archive.add_package("x-doc", VERSION, QUOTED, RIGHT)
    archive.files[f"/mr/binary/x-doc/{QUOTED}/binfiles?fileinfo=1"] = answer
    with pytest.raises(ValueError, match="not the answer that is documented"):
        download(source, tmp_path, **DEBIAN, pin=pin())


def test_descriptions_of_packages_come_unpacked(source, archive, tmp_path):
    archive.add_descriptions("pt_BR", "Package: x\nDescription-pt_BR: é\n")
    text = "Package: x\nDescription-pt_BR: é\n".encode()
    which = {"registry": "debian-descriptions", "package": "pt_BR"}
    path = download(source, tmp_path, **which, pin=pin(text, "Translation-pt_BR.text"))
    assert (path.name, path.read_bytes()) == ("Translation-pt_BR.text", text)
    with pytest.raises(NotOfferedError, match=r"no Translation-de of Debian 12 as of 20261130"):
        download(source, tmp_path, **(which | {"package": "de"}), pin=pin(b"x", "Translation-de.text"))


@pytest.mark.parametrize("damage", [lambda packed: packed[:-9], lambda packed: b"<html>" + packed])
def test_descriptions_that_cannot_be_unpacked_are_told(damage, source, archive, tmp_path):
    path = archive.add_descriptions("de", "Package: x\n" * 99)
    archive.files[path] = damage(archive.files[path])
    which = {"registry": "debian-descriptions", "package": "de"}
    with pytest.raises(ValueError, match=r"Translation-de\.bz2: not a whole file of format bz2"):
        download(source, tmp_path, **which, pin=pin(b"x", "Translation-de.text"))


def test_without_a_pin_apt_gives_its_newest_and_the_archive_is_not_asked(source, archive, tmp_path):
    with pytest.raises(
        ValueError, match=r"^source it: apt-get download -q x-doc failed: E: Unable to locate"
    ):
        download(source, tmp_path / "d", **DEBIAN)
    apt_that_gives(WRONG, tmp_path, "x-doc_9_all.deb")
    assert download(source, tmp_path / "d", **DEBIAN).name == "x-doc_9_all.deb"
    assert not archive.asked
