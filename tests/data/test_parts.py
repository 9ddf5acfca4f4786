"""A prepared folder in parts: every byte comes back, in any order of parts, and damage is named."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from repro.data import parts
from repro.data.manifest import verify_data


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "CHUNK_BYTES", 200_000)
        yield


@pytest.fixture(scope="module")
def packed(prepared, tmp_path_factory, small_chunks):
    out = tmp_path_factory.mktemp("parts")
    written = parts.pack(prepared, out, max_bytes=450_000, processes=2)
    assert len(written) > 3, "the folder should need several parts here"
    return [path for path in written if path.suffix == ".bin"]


def test_parts_keep_their_size(packed):
    assert all(path.stat().st_size <= 450_000 for path in packed)


def test_parts_in_two_calls_give_the_folder_back(packed, prepared, tmp_path):
    folder = tmp_path / "data"
    missing = parts.unpack(packed[2:], folder, processes=1)
    assert missing
    assert not (folder / "manifest.json").exists(), "an incomplete folder must not look like data"
    assert parts.unpack([*packed[:2], packed[2]], folder, processes=2) == []
    verify_data(folder, checksums=True)
    for path in prepared.rglob("*"):
        if path.is_file():
            assert (folder / path.relative_to(prepared)).read_bytes() == path.read_bytes()
    assert not list(folder.glob(".*"))


def test_an_altered_part_is_named(packed, tmp_path):
    bad = tmp_path / packed[0].name
    content = bytearray(packed[0].read_bytes())
    content[1000] ^= 1
    bad.write_bytes(content)
    with pytest.raises(ValueError, match=r"part_00.bin.*bring this part again|not what was packed"):
        parts.unpack([bad, *packed[1:]], tmp_path / "data", processes=1)


def test_a_truncated_part_is_named(packed, tmp_path):
    bad = tmp_path / packed[0].name
    bad.write_bytes(packed[0].read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"part_00.bin: truncated"):
        parts.unpack([bad], tmp_path / "data", processes=1)


def test_parts_of_other_data_are_refused(packed, prepared, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(prepared, other)
    text = (other / "manifest.json").read_text(encoding="utf-8")
    (other / "manifest.json").write_text(text.replace('"name": "small"', '"name": "large"'), encoding="utf-8")
    [*others, _] = parts.pack(other, tmp_path / "parts", max_bytes=450_000, processes=1)
    parts.unpack(packed[:1], tmp_path / "data", processes=1)
    with pytest.raises(ValueError, match="a part of other data"):
        parts.unpack(others[1:2], tmp_path / "data", processes=1)


def test_the_command_says_what_is_missing(packed, tmp_path, capsys):
    assert parts.main(["unpack", str(packed[0]), "--out", str(tmp_path / "data")]) == 3
    assert "still missing" in capsys.readouterr().out
    assert parts.main(["unpack", str(tmp_path / "part_09.bin"), "--out", str(tmp_path / "data")]) == 2


SLOW = """
import sys, time
from pathlib import Path
from repro.data import parts

def slow(job):
    Path(sys.argv[1]).touch()
    time.sleep(60)

if __name__ == "__main__":
    parts._compress = parts._write = slow
    sys.exit(parts.main(sys.argv[2:]))
"""


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_ctrl_c_ends_in_one_line_of_the_command_and_none_of_its_processes(
    command, packed, prepared, tmp_path
):
    (tmp_path / "slow.py").write_text(SLOW)
    begun, out = tmp_path / "begun", tmp_path / "out"
    words = [command, prepared if command == "pack" else packed[0], "--out", out, "--processes", 2]
    process = subprocess.Popen(
        [sys.executable, tmp_path / "slow.py", begun, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the whole group
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until = time.monotonic() + 60
    while not begun.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    told = f"{out}: stopped, not complete; run again to {command} it\n"
    assert process.communicate(timeout=30) == ("", told)
    assert process.returncode == 130
