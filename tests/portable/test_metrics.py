"""metrics.jsonl: cut at the checkpoint, whole lines, no NaN in the JSON."""

import json

import pytest

from repro.portable.metrics import MetricsWriter, comparable, write_whole


def test_lines_after_the_checkpoint_are_cut_off(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, keep_bytes=0)
    writer.write({"step": 1})
    length = writer.flush()
    writer.write({"step": 2})
    writer.close()
    writer = MetricsWriter(path, keep_bytes=length)
    writer.write({"step": 2, "again": True})
    writer.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1},
        {"step": 2, "again": True},
    ]


def test_a_file_shorter_than_the_checkpoint_says_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl: 3 bytes, but the checkpoint was taken at 50"):
        MetricsWriter(path, keep_bytes=50)


def test_non_finite_numbers_become_null(tmp_path):
    writer = MetricsWriter(tmp_path / "m.jsonl", keep_bytes=0)
    writer.write({"loss": float("nan"), "by": {"a": float("inf")}})
    writer.close()
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {"loss": None, "by": {"a": None}}


def test_comparison_leaves_the_machine_out():
    assert comparable('{"loss": 1.0, "seconds": 2.0}\n') == comparable('{"loss": 1.0, "seconds": 9.0}\n')
    assert comparable('{"loss": 1.0}\n') != comparable('{"loss": 1.5}\n')


def test_files_are_replaced_whole(tmp_path):
    (tmp_path / "b").write_text("old and longer")
    write_whole(tmp_path / "b", b"new")
    assert (tmp_path / "b").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
