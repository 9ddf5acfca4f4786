"""A prepared folder: no leak, readable by megatron-core and transformers, guarded against damage."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from repro.data import TrainingData, read_manifest, verify_data
from repro.data.__main__ import main
from repro.data.dedup import ngrams
from repro.data.indexed import IndexedTokens
from repro.data.manifest import MANIFEST
from repro.data.prepare import identity_of, prepare
from repro.data.split import is_held_out
from repro.data.tokenizer import END_OF_DOCUMENT_ID, load_tokenizer


def texts(folder, category: str, split: str) -> list[str]:
    tokens = IndexedTokens(folder / f"{category}_{split}")
    tokenizer = load_tokenizer(folder)
    return [tokenizer.decode(tokens[i].tolist(), skip_special_tokens=True) for i in range(len(tokens))]


@pytest.fixture
def copy(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "copy")


def test_no_held_out_text_is_in_training(prepared):
    """Long runs of words of what was really written, decoded from the token files, over all categories together."""
    categories = [c for c in read_manifest(prepared)["categories"] if c != "math"]
    held_out = {g for c in categories for text in texts(prepared, c, "validation") for g in ngrams(text)}
    assert len(held_out) > 10_000, "too little held-out text for the test to mean anything"
    for category in categories:
        leaks = sum(gram in held_out for text in texts(prepared, category, "train") for gram in ngrams(text))
        assert leaks == 0, f"{leaks} runs of held-out words in the training text of {category}"


def test_no_generated_item_is_in_both_splits(prepared):
    held_out = set(texts(prepared, "math", "validation"))
    assert held_out
    assert not held_out & set(texts(prepared, "math", "train"))


def test_the_tokenizer_is_trained_without_held_out_documents(small_spec, tmp_path, monkeypatch):
    class Seen(Exception):  # noqa: N818 - what comes after is of no interest here
        pass

    def train(documents, **_):
        raise Seen(list(documents))

    monkeypatch.setattr("repro.data.prepare.train_tokenizer", train)
    with pytest.raises(Seen) as seen:
        prepare(small_spec, tmp_path / "small", say=lambda line: None)
    fractions = {source.name: source.hold_out for source in small_spec.sources}
    keys = {document.key: fractions[document.source] for document in seen.value.args[0]}
    assert len(keys) > 100
    assert not [k for k, share in keys.items() if is_held_out(k, small_spec.hold_out, fraction=share)]


def test_own_reader_equals_megatron_core(prepared):
    dataset_module = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    for path in sorted(prepared.glob("*.idx")):
        prefix = path.with_suffix("")
        theirs, ours = dataset_module.IndexedDataset(str(prefix)), IndexedTokens(prefix)
        assert len(theirs) == len(ours) == len(ours.document_indices) - 1
        assert np.array_equal(theirs.document_indices, ours.document_indices), path.name
        assert np.array_equal(theirs.sequence_lengths, ours.sequence_lengths), path.name
        for index in range(0, len(ours), 17):
            assert np.array_equal(theirs[index], ours[index]), f"{path.name}: sequence {index} differs"


def test_every_document_ends_with_the_mark_and_has_it_nowhere_else(prepared):
    for path in prepared.glob("*.idx"):
        tokens = IndexedTokens(path.with_suffix(""))
        ends = np.flatnonzero(tokens.tokens == END_OF_DOCUMENT_ID)
        assert np.array_equal(ends, np.cumsum(tokens.sequence_lengths) - 1), path.name
        assert tokens.tokens.dtype == np.uint16


def test_counts_of_the_manifest_are_those_of_the_files(prepared):
    for category, splits in read_manifest(prepared)["categories"].items():
        for split, counts in splits.items():
            tokens = IndexedTokens(prepared / f"{category}_{split}")
            assert (len(tokens.tokens), len(tokens)) == (counts["tokens"], counts["documents"])


def test_tokenizer_loads_in_transformers_and_reads_back_any_text(prepared):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(prepared / "tokenizer"), local_files_only=True)
    assert len(tokenizer) == 512
    assert tokenizer.eos_token_id == END_OF_DOCUMENT_ID
    text = "Na\u00efve  caf\u00e9: x_1 = 12345\n\t\u5e8a\u524d\u660e\u6708\u5149 \U0001f40b end "
    ids = tokenizer(text)["input_ids"]
    assert ids == load_tokenizer(prepared).encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(tokenizer("12345")["input_ids"]) == 5, "numbers are to be spelt digit by digit"


def test_preparing_again_only_verifies(prepared, small_spec):
    before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}
    said = []
    prepare(small_spec, prepared, say=said.append)
    assert before == {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}
    assert "intact" in said[-1]


def test_preparing_elsewhere_gives_the_same_bytes(prepared, small_spec, tmp_path):
    prepare(small_spec, tmp_path / "again", say=lambda line: None)
    assert (tmp_path / "again" / MANIFEST).read_bytes() == (prepared / MANIFEST).read_bytes()


def test_blend_and_seed_do_not_change_the_files(small_spec):
    other = small_spec.model_copy(update={"seed": 99, "blends": {}})
    assert identity_of(other) == identity_of(small_spec)
    other = small_spec.model_copy(update={"hold_out": small_spec.hold_out.model_copy(update={"salt": "b"})})
    assert identity_of(other) != identity_of(small_spec)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "crawl_train.bin").unlink(), r"crawl_train\.bin: missing"),
        (lambda f: (f / "crawl_train.bin").write_bytes(b"ab"), r"crawl_train\.bin: truncated: 2 bytes"),
        (lambda f: (f / "wiki_train.idx").write_bytes(b"a" * 10**6), r"wiki_train\.idx: altered"),
        (lambda f: (f / "tokenizer" / "tokenizer.json").write_text("{"), r"tokenizer\.json: truncated"),
        (lambda f: (f / MANIFEST).write_text('{"name": '), r"manifest\.json: .*truncated or altered"),
        (lambda f: (f / MANIFEST).unlink(), r"manifest\.json: no manifest; prepare the data first"),
    ],
)
def test_training_names_the_damaged_file(copy, run_sections, damage, message):
    damage(copy)
    with pytest.raises(ValueError, match=message):
        TrainingData(copy, *run_sections)


def test_one_changed_byte_is_found_by_checksums(copy, small_spec):
    path = copy / "wiki_train.bin"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(bytes(content))
    verify_data(copy)
    with pytest.raises(ValueError, match=r"wiki_train\.bin: altered"):
        verify_data(copy, checksums=True)
    with pytest.raises(ValueError, match=r"wiki_train\.bin: altered"):
        prepare(small_spec, copy, say=lambda line: None)


def test_an_interrupted_preparation_is_no_prepared_folder(small_spec, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "repro.data.prepare.train_tokenizer", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        prepare(small_spec, tmp_path / "half", say=lambda line: None)
    with pytest.raises(ValueError, match="no manifest"):
        verify_data(tmp_path / "half")


def test_ctrl_c_ends_in_one_line(tmp_path, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("repro.data.__main__.prepare", stopped)
    config = Path(__file__).parents[2] / "configs" / "data" / "tiny.yaml"
    assert main([str(config), "--out", str(tmp_path / "data")]) == 130
    assert capsys.readouterr().err == f"{tmp_path / 'data'}: stopped, not complete; run again to prepare it\n"


def test_full_disk_is_named(small_spec, tmp_path, monkeypatch):
    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device", str(tmp_path / "crawl_train.bin"))

    monkeypatch.setattr("repro.data.prepare.write_token_files", full)
    with pytest.raises(ValueError, match=r"crawl_train\.bin: the disk is full"):
        prepare(small_spec, tmp_path / "full", say=lambda line: None)


def test_evaluation_items_have_one_right_choice_and_come_from_held_out_text(prepared):
    manifest = read_manifest(prepared)
    held_out = " ".join(
        " ".join(" ".join(texts(prepared, c, "validation")).split()) for c in manifest["categories"]
    )
    assert {"general_next_word", "math_sums", "multilingual_language", "commonsense_speech"} <= set(
        manifest["evals"]
    )
    for name, count in manifest["evals"].items():
        lines = (prepared / "evals" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        items = [json.loads(line) for line in lines]
        assert len(items) == count
        for item in items:
            if "choices" in item:
                assert len(set(item["choices"])) == 4
                assert item["answer"] in range(4)
            else:
                assert isinstance(item["answer"], str)
        if name in ("general_next_word", "commonsense_continuation", "commonsense_speech"):
            for item in items:
                right = " ".join(f"{item['question']} {item['choices'][item['answer']]}".split())
                assert right in held_out, f"{name}: not in the held-out text: {right[:80]}"


def test_right_choices_stand_at_every_place(prepared):
    lines = (prepared / "evals" / "general_next_word.jsonl").read_text(encoding="utf-8").splitlines()
    places = np.bincount([json.loads(line)["answer"] for line in lines], minlength=4)
    assert places.min() > len(lines) / 8, f"uneven places {places.tolist()}"
