"""Texts of published data files: every format reads alike, and a damaged one is named."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from published import write_lines, write_parquet

from repro.data.rows import ROWS, texts_of

TEXTS = [f"text {number} with ümlauts and\nlines" for number in range(ROWS + 50)]
NAMES = ("a.parquet", "a.jsonl", "a.json.gz", "a.jsonl.zst")


def write(path: Path, texts: list[str]) -> Path:
    (write_parquet if path.suffix == ".parquet" else write_lines)(path, texts)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_same_texts_in_order(name, tmp_path):
    assert list(texts_of(write(tmp_path / name, TEXTS), "text")) == TEXTS


def test_rows_without_text_are_left_out(tmp_path):
    write_parquet(tmp_path / "a.parquet", ["one", None, "", " \n", "two"])
    assert list(texts_of(tmp_path / "a.parquet", "text")) == ["one", "two"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_was_cut_off_is_named(name, tmp_path):
    path = write(tmp_path / name, TEXTS)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=rf"{name}.*(truncated|not a JSON object)"):
        list(texts_of(path, "text"))


def test_parquet_that_is_damaged_inside_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", TEXTS)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 2000] = bytes(2000)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.parquet: damaged"):
        list(texts_of(path, "text"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.parquet", "has no column 'txt'; it has id, text"),
        ("a.jsonl", "line 1: has no key 'txt'; it has text"),
    ],
)
def test_a_missing_column_is_answered_with_those_that_are_there(name, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        list(texts_of(write(tmp_path / name, TEXTS), "txt"))


def test_a_column_of_numbers_is_no_text(tmp_path):
    with pytest.raises(ValueError, match="column 'id' holds int64, not text"):
        list(texts_of(write(tmp_path / "a.parquet", TEXTS), "id"))
    (tmp_path / "b.jsonl").write_text('{"text": "fine"}\n{"text": 3}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl, line 2: .*text is int"):
        list(texts_of(tmp_path / "b.jsonl", "text"))


def test_a_line_that_is_no_object_is_named_with_its_number(tmp_path):
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "fine"}) + "\n[1]\n")
    with pytest.raises(ValueError, match="line 2: not a JSON object"):
        list(texts_of(tmp_path / "b.jsonl", "text"))


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.jsonl").touch()
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        with pytest.raises(ValueError, match=f"{name}: holds no row"):
            list(texts_of(tmp_path / name, "text"))


@pytest.mark.parametrize("name", ["a.csv", "a.bar.gz", "a.parquet.gz", "a"])
def test_an_unknown_format_is_refused(name, tmp_path):
    (tmp_path / name).write_bytes(b"text\n")
    with pytest.raises(ValueError, match=r"unknown format; read are \.parquet"):
        list(texts_of(tmp_path / name, "text"))
