"""A checkpoint of megatron-core that holds something else than was written: a flipped bit changes no size."""

import json
import shutil
import sys

import pytest
from session_run import metrics, run
from small import STEP_TOKENS, World, freeze
from test_convert import FIXTURES, STEP, spec_of

from repro.cluster import state
from repro.cluster.convert import to_hugging_face
from repro.cluster.sums import altered, collect_sums, write_sums

FILES = {
    "__0_0.distcp": 0,
    "__0_1.distcp": 0,
    "__1_0.distcp": 1,
    "__10_0.distcp": 10,
    ".metadata": 0,
    "common.pt": 0,
}


@pytest.fixture(autouse=True)
def _argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["repro.cluster"])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def files_of(segment, root, step):
    return state.tensors_folder(root / segment.run_hash, step) / "__0_0.distcp"


def refuse(segment, root, **place):
    place = {"rank": 0, "size": 1, **place}
    state.refuse_altered(state.find_start(segment, root), **place)


def test_each_process_notes_its_own_files_and_the_first_what_has_no_number(tmp_path):
    tensors, marks = tmp_path / "iter_0000004", tmp_path / "step_00000004"
    tensors.mkdir()
    for name in FILES:
        (tensors / name).write_bytes(name.encode())
    for rank in range(11):
        write_sums(tensors, marks, rank)
        noted = json.loads((marks / f"sums.{rank}.json").read_text())
        assert set(noted) == {name for name, writer in FILES.items() if writer == rank}
    write_sums(tensors, marks, 300)  # left over from a save by more processes, which was cut off
    sums = collect_sums(marks, processes=11)
    assert set(sums) == set(FILES)
    assert not list(marks.iterdir())
    assert altered(tensors, sums) is None
    for name in FILES:
        flip(tensors / name)
        found = [altered(tensors, sums, share=share, of=3) for share in range(3)]
        assert [path for path in found if path] == [tensors / name], "one process of three finds it"
        flip(tensors / name)


def test_a_flipped_bit_is_found_before_it_is_loaded_and_the_next_start_takes_the_one_before(
    tmp_path, monkeypatch
):
    segment, root = freeze(tmp_path / "run"), tmp_path / "state"
    run(segment, root, monkeypatch, signal_at=11)
    refuse(segment, root)
    flip(files_of(segment, root, 11))
    assert state.find_start(segment, root).step == 11, "its size is right"
    refuse(segment, root, rank=1, size=2)  # another process's share
    with pytest.raises(
        ValueError, match=r"^damaged checkpoint left out: .*iter_0000011/__0_0\.distcp is not what"
    ):
        refuse(segment, root)
    assert state.find_start(segment, root).step == 9
    refuse(segment, root)
    run(segment, root, monkeypatch)
    assert [line["step"] for line in metrics(segment) if line["kind"] == "train"] == list(range(1, 21))
    assert not list(root.rglob("sums.*"))


def test_a_fork_of_an_altered_checkpoint_is_refused_and_the_parent_s_stays(tmp_path, monkeypatch):
    parent, root = freeze(tmp_path / "parent", end=8), tmp_path / "state"
    run(parent, root, monkeypatch)
    link = {"run": "parent", "segment": 0, "run_hash": parent.run_hash, "tokens": 8 * STEP_TOKENS}
    child = freeze(tmp_path / "child", start=8, parent=link)
    refuse(child, root)
    flip(files_of(parent, root, 8))
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"iter_0000008/__0_0\.distcp: not what was written .* trained again"
        ):
            refuse(child, root)


def test_a_fresh_start_and_an_older_checkpoint_have_nothing_to_compare(tmp_path, monkeypatch):
    segment, root = freeze(tmp_path / "run"), tmp_path / "state"
    refuse(segment, root)
    run(segment, root, monkeypatch, signal_at=11)
    folder = root / segment.run_hash
    older = {key: value for key, value in state.read_meta(folder, 11).items() if key != "sha256"}
    state.write_meta(folder, 11, older)
    flip(files_of(segment, root, 11))
    refuse(segment, root)


def test_a_save_that_is_cut_off_before_its_mark_leaves_no_checkpoint(tmp_path, monkeypatch):
    segment, root = freeze(tmp_path / "run"), tmp_path / "state"
    run(segment, root, monkeypatch, signal_at=11)
    folder = root / segment.run_hash
    World(segment, folder, start=11).save(12)
    write_sums(state.tensors_folder(folder, 12), state.marks_folder(folder, 12), 0)
    assert state.find_start(segment, root).step == 11


def test_an_export_refuses_what_is_not_what_was_written(tmp_path):
    folder = tmp_path / "state"
    tensors, marks = state.tensors_folder(folder, STEP), state.marks_folder(folder, STEP)
    shutil.copytree(FIXTURES / "hybrid" / "checkpoint", tensors)
    write_sums(tensors, marks, 0)
    state.write_meta(folder, STEP, {"step": STEP, "sha256": collect_sums(marks, processes=1)})
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 1}}}')
    (tokenizer / "tokenizer_config.json").write_text("{}")
    to_hugging_face(folder, STEP, spec_of("hybrid"), tmp_path / "out", tokenizer_dir=tokenizer)
    flip(tensors / "__0_0.distcp")
    with pytest.raises(ValueError, match=r"__0_0\.distcp: not what was written .* train it again"):
        to_hugging_face(folder, STEP, spec_of("hybrid"), tmp_path / "again", tokenizer_dir=tokenizer)
