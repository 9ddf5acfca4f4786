"""A disk that is full at any file: one line that says so, nothing that is taken for whole, and the rest once there is
room. /dev/full stands in for the disk under one file: it opens and refuses every byte."""

import errno
from pathlib import Path

import pytest
from published import spec, write_corpora

from repro.data import hub, parts
from repro.data.__main__ import main
from repro.data.fetch import unpack
from repro.data.tokenizer import load_tokenizer, save_tokenizer

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> Path:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


def test_the_tokenizer_s_file(prepared, tmp_path):
    tokenizer = load_tokenizer(prepared)
    (tmp_path / "tokenizer.json").symlink_to(FULL)
    with pytest.raises(OSError, match="No space left on device") as raised:
        save_tokenizer(tokenizer, tmp_path)
    assert raised.value.errno == errno.ENOSPC
    (tmp_path / "tokenizer.json").unlink()
    save_tokenizer(tokenizer, tmp_path)
    tokenizer.save(str(tmp_path / "library.json"))
    assert (tmp_path / "tokenizer.json").read_bytes() == (tmp_path / "library.json").read_bytes()


@pytest.mark.parametrize(
    ("step", "file"),
    [
        ("tokenizer", "tokenizer/tokenizer.json"),
        ("tokenizer", "tokenizer/.origin.json"),
        ("list:papers", "shards/papers/.listing.json"),
        ("shard:papers:0", "shards/papers/0000_train.bin.writing"),
        ("shard:papers:0", "shards/papers/0000_train.idx.writing"),
        ("shard:papers:0", "shards/papers/0000.json.writing"),
    ],
)
def test_a_step_says_so_and_is_made_once_there_is_room(step, file, corpora, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("repro.data.__main__.load_data_spec", lambda _: spec())
    whole, data = tmp_path / "whole", tmp_path / "data"
    steps = ["tokenizer", "list:papers", "shard:papers:0"]

    def run(folder: Path, step: str) -> int:
        return main(["x.yaml", "--out", str(folder), "--corpora", str(corpora), "--step", step])

    assert [run(whole, each) for each in steps] == [0, 0, 0]
    for each in steps[: steps.index(step)]:
        assert run(data, each) == 0
    (data / file).parent.mkdir(parents=True, exist_ok=True)
    (data / file).symlink_to(FULL)
    capsys.readouterr()
    assert run(data, step) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "the disk is full; the data is not complete" in line
    (data / file).unlink()
    assert [run(data, each) for each in steps] == [0, 0, 0]
    made = {path.relative_to(data): path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert made == {path.relative_to(whole): path.read_bytes() for path in whole.rglob("*") if path.is_file()}


def test_what_is_told_of_a_tokenizer_is_not_taken_for_one_half_written_over_it(
    corpora, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("repro.data.__main__.load_data_spec", lambda _: spec())
    command = ["x.yaml", "--out", str(tmp_path), "--corpora", str(corpora), "--step"]
    assert main([*command, "tokenizer"]) == 0
    (tmp_path / "tokenizer" / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer" / "tokenizer_config.json").symlink_to(FULL)
    assert main([*command, "tokenizer"]) == 2
    assert main([*command, "list:papers"]) == 0
    assert main([*command, "shard:papers:0"]) == 2
    assert "fetch the tokenizer first" in capsys.readouterr().err


def test_a_download_is_not_taken_for_a_missing_network():
    pytest.importorskip("huggingface_hub")
    with pytest.raises(OSError, match="No space left"), hub._words("source papers", "a/b", "dataset"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_package_that_cannot_be_unpacked_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("repro.data.fetch.shutil.which", lambda _: "dpkg-deb")
    tool = tmp_path / "bin" / "dpkg-deb"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'dpkg-deb: error: No space left on device' >&2\nexit 2\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    with pytest.raises(ValueError, match=r"x\.deb: cannot be unpacked: .*No space left on device$"):
        unpack(tmp_path / "x.deb", tmp_path / "package")


def test_unpacking_parts_says_so(prepared, tmp_path, monkeypatch, capsys):
    parts.pack(prepared, tmp_path / "parts", max_bytes=50_000_000, processes=1)
    [part] = (tmp_path / "parts").glob("part_*.bin")
    data = tmp_path / "data"
    data.mkdir()
    (data / ".unpacked.writing").symlink_to(FULL)
    assert parts.main(["unpack", str(part), "--out", str(data), "--processes", "1"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line
    assert not (data / "manifest.json").exists()
    (data / ".unpacked.writing").unlink()
    assert parts.main(["unpack", str(part), "--out", str(data), "--processes", "1"]) == 0
