"""A published corpus prepared in shards: what ends up in training and validation, and what is done again."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from published import (
    BASE,
    END,
    PAPERS,
    REPEATED,
    SFT,
    VOCAB,
    WEB,
    sentences,
    spec,
    write_corpora,
    write_parquet,
)
from published import write_tokenizer as write_family_tokenizer

from repro.data import TrainingData, ValidationData, read_manifest, verify_data
from repro.data.__main__ import main
from repro.data.assemble import assemble, prepare_shards
from repro.data.hub import Listing
from repro.data.indexed import IndexedTokens
from repro.data.pretrained import write_tokenizer
from repro.data.shards import identity_of, listing_path, shard_prefix, write_listing, write_shard
from repro.data.tokenizer import load_tokenizer
from repro.experiments.data_spec import DataSpec, load_data_spec

LENGTH = 32


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> Path:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture(scope="module")
def folder(corpora, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("published") / "data"
    prepare_shards(spec(), path, corpora=corpora, say=quiet)
    return path


def documents(folder: Path, name: str) -> list[str]:
    """Texts of a token file, each checked for its end-of-document token."""
    tokens, tokenizer = IndexedTokens(folder / name), load_tokenizer(folder)
    end = tokenizer.token_to_id(END)
    for i in range(len(tokens)):
        assert tokens[i][-1] == end, f"document {i} of {name} does not end with {END}"
        assert end not in tokens[i][:-1], f"document {i} of {name} holds {END} inside"
    return [tokenizer.decode(tokens[i][:-1].tolist(), skip_special_tokens=False) for i in range(len(tokens))]


def texts(folder: Path, category: str) -> tuple[list[str], list[str]]:
    shards = read_manifest(folder)["categories"][category]["train"]["shards"]
    training = [text for shard in shards for text in documents(folder, shard["name"])]
    return training, documents(folder, f"{category}_validation")


def test_every_text_is_there_once_and_only_the_listed_files_are(folder):
    training, validation = texts(folder, "crawl.high")
    expected = [*sentences("web", 600), *[REPEATED] * 5]
    expected += [f"A literal {END} and <|unused|> stay text {part}." for part in range(5)]
    assert sorted(training + validation) == sorted(expected)


def test_no_document_of_validation_is_in_training_of_any_source(folder):
    split = {category: texts(folder, category) for category in read_manifest(folder)["categories"]}
    training = {text for pair in split.values() for text in pair[0]}
    for category, (_, validation) in split.items():
        assert 0.03 < len(validation) / (len(validation) + len(split[category][0])) < 0.2
        assert not training & set(validation), f"held-out documents of {category} are in training"


def test_validation_mixes_the_shards(folder):
    numbers = [int(t.split()[1]) % 5 for t in texts(folder, "crawl.high")[1] if t.startswith("Document")]
    assert len(set(numbers[:12])) > 2, "the first held-out documents all come from one or two files"


def test_training_reads_every_window_of_every_shard_once(folder):
    manifest = read_manifest(folder)
    sizes = [shard["tokens"] for shard in manifest["categories"]["crawl.high"]["train"]["shards"]]
    assert len(sizes) == 2
    windows = [(size - 1) // LENGTH for size in sizes]
    phases = [{"until_tokens": sum(windows) * LENGTH, "blend": {"crawl.high": 1.0}}]
    data = TrainingData(
        folder, {"name": "published", "seed": 1, "phases": phases}, {"sequence_length_tokens": LENGTH}
    )
    batch = data.batch(0, sum(windows))
    stored = [IndexedTokens(folder / f"{shard_prefix(folder, 'web_high', n)}_train").tokens for n in range(2)]
    expected = [
        t[w * LENGTH : (w + 1) * LENGTH + 1] for t, n in zip(stored, windows, strict=True) for w in range(n)
    ]
    assert sorted(map(tuple, batch.tolist())) == sorted(map(tuple, np.asarray(expected).tolist()))


def test_validation_is_read_as_of_any_folder(folder):
    phases = [{"until_tokens": 100 * LENGTH, "blend": {"crawl.high": 0.7, "sft.code": 0.2, "academic": 0.1}}]
    sections = {"name": "published", "seed": 1, "phases": phases}, {"sequence_length_tokens": LENGTH}
    data = ValidationData(folder, *sections, {"sequences": 10})
    assert data.num_sequences == {"academic": 2, "crawl.high": 6, "sft.code": 2}
    assert [batch.shape for _, batch in data.batches(3)] == [(2, 33), (3, 33), (3, 33), (2, 33)]


def test_the_manifest_says_what_it_was_made_from(folder):
    manifest = verify_data(folder, checksums=True)
    assert manifest["tokenizer"] == {
        "vocab_size": VOCAB,
        "repo": BASE,
        "revision": "local folder",
        "entries": VOCAB,
        "end_of_document": END,
        "end_of_document_id": 2,
    }
    web = manifest["sources"][0]
    assert (web["repo"], web["files"], web["documents"]) == (WEB, 5, 610)
    assert len(web["files_sha256"]) == 64
    counts = manifest["categories"]["academic"]
    assert counts["train"]["documents"] + counts["validation"]["documents"] == 400


def test_the_same_text_gives_the_same_folder(folder, corpora, tmp_path):
    prepare_shards(spec(), tmp_path, corpora=corpora, say=quiet)
    assert (tmp_path / "manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()


def test_what_is_finished_is_kept_and_what_is_half_written_is_made_again(folder, corpora, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    kept, half = shard_prefix(data, "web_high", 0), shard_prefix(data, "web_high", 1)
    times = {path: path.stat().st_mtime_ns for path in kept.parent.glob(f"{kept.name}*")}
    half.with_suffix(".json").unlink()
    Path(f"{half}_train.bin").write_bytes(b"half")
    Path(f"{half}_validation.idx.writing").write_bytes(b"half")
    said: list[str] = []
    prepare_shards(spec(), data, corpora=corpora, say=said.append)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert sum("finished before" in line for line in said) == 3, said
    assert (data / "manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()


def test_another_tokenizer_or_split_makes_the_shards_again(folder, corpora, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    other = spec(hold_out={"fraction": 0.2, "salt": "test"})
    with pytest.raises(ValueError, match=r"web_high/0000\.json: the shard is not finished, or was made from"):
        assemble(other, data, say=quiet)
    write_shard(other, "web_high", 0, data, corpora=corpora, say=quiet)
    counts = json.loads(shard_prefix(data, "web_high", 0).with_suffix(".json").read_text())
    assert counts["validation"]["documents"] > 0.12 * counts["train"]["documents"]


def test_another_column_of_the_same_files_makes_the_shards_again(folder):
    listing, content = Listing.read(listing_path(folder, "web_high")), spec().model_dump()
    for source in content["sources"]:
        source["options"]["column"] = "another"
    one, other = (
        identity_of(each, listing, 0, folder) for each in (spec(), DataSpec.model_validate(content))
    )
    assert one != other


def test_steps_of_the_command_are_those_of_the_whole(folder, corpora, tmp_path, monkeypatch):
    monkeypatch.setattr("repro.data.__main__.load_data_spec", lambda _: spec())
    listed = [f"list:{name}" for name in ("web_high", "sft_code", "papers")]
    shards = ["shard:web_high:1", "shard:papers:0", "shard:web_high:0", "shard:sft_code:0"]
    for step in ("tokenizer", *listed, *shards, "manifest"):
        assert main(["x.yaml", "--out", str(tmp_path), "--corpora", str(corpora), "--step", step]) == 0, step
    assert (tmp_path / "manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("shard:web_high:0", "fetch the tokenizer first"),
        ("shard:web_hihg:0", "no source 'web_hihg'; did you mean 'web_high'"),
        ("shards", "known are tokenizer, list:SOURCE, shard:SOURCE:NUMBER, manifest"),
        ("manifest", r"web_high/listing\.json: missing; list the source first"),
    ],
)
def test_a_step_out_of_turn_is_explained(step, message, corpora, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("repro.data.__main__.load_data_spec", lambda _: spec())
    assert main(["x.yaml", "--out", str(tmp_path), "--corpora", str(corpora), "--step", step]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error


def test_a_tokenizer_larger_than_the_models_vocabulary_is_refused(corpora, tmp_path):
    wanted = spec().tokenizer.model_copy(update={"vocab_size": VOCAB - 1})
    with pytest.raises(ValueError, match=f"{VOCAB} entries, but the models' vocab_size is {VOCAB - 1}"):
        write_tokenizer(wanted, tmp_path, corpora)
    wanted = spec().tokenizer.model_copy(update={"end_of_document": "<eod>"})
    with pytest.raises(ValueError, match="end_of_document '<eod>' is none of its"):
        write_tokenizer(wanted, tmp_path, corpora)


def _one_file(tmp_path: Path, texts: list, *, column: str = "text") -> tuple[Path, Path]:
    root, data = tmp_path / "corpora", tmp_path / "data"
    write_family_tokenizer(root / BASE)
    write_parquet(root / SFT / "SFT-Code" / "part_000000.parquet", texts, column=column)
    write_tokenizer(spec().tokenizer, data, root)
    write_listing(spec(), "sft_code", data, root)
    return root, data


def test_bad_files_are_named_with_their_source(tmp_path):
    root, data = _one_file(tmp_path / "column", ["a"], column="content")
    with pytest.raises(
        ValueError, match=r"source sft_code: .*part_000000.*no column 'text'; it has id, content"
    ):
        write_shard(spec(), "sft_code", 0, data, corpora=root, say=quiet)
    root, data = _one_file(tmp_path / "empty", [])
    with pytest.raises(ValueError, match=r"source sft_code: .*part_000000\.parquet: holds no row"):
        write_shard(spec(), "sft_code", 0, data, corpora=root, say=quiet)
    root, data = _one_file(tmp_path / "cut", ["a"] * 100)
    file = root / SFT / "SFT-Code" / "part_000000.parquet"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"source sft_code: .*truncated or altered: \d+ bytes, listed were"):
        write_shard(spec(), "sft_code", 0, data, corpora=root, say=quiet)
    write_listing(spec(), "sft_code", data, root)
    with pytest.raises(ValueError, match=r"source sft_code: .*truncated or no parquet file"):
        write_shard(spec(), "sft_code", 0, data, corpora=root, say=quiet)
    assert not list(data.glob("shards/sft_code/*.json.writing"))
    assert not shard_prefix(data, "sft_code", 0).with_suffix(".json").exists()


def test_folders_without_the_files_are_explained(corpora, tmp_path):
    with pytest.raises(ValueError, match=r"nvidia/Web-v2 is missing; get it with: hf download nvidia/Web-v2"):
        write_listing(spec(), "web_high", tmp_path, tmp_path)
    content = spec().model_dump()
    content["sources"][2]["options"]["files"] = ["data/*.gz", "*.csv"]
    content["sources"][0]["options"]["shards"] = 6
    with pytest.raises(ValueError, match=rf"papers: {PAPERS} has no file \*\.csv; it has the folders data"):
        write_listing(spec(sources=content["sources"]), "papers", tmp_path, corpora)
    with pytest.raises(ValueError, match=r"options\.shards: 6 jobs for 5 files"):
        write_listing(spec(sources=content["sources"]), "web_high", tmp_path, corpora)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["sources"][0]["options"].pop("repo"), "source web_high: options: key 'repo' is missing"),
        (lambda c: c["sources"][0]["options"].update(shard=1), "unknown key 'shard'; did you mean 'shards'"),
        (
            lambda c: c["sources"][0].update(max_bytes=9),
            "web_high: max_bytes is not for sources of kind 'hub'",
        ),
        (lambda c: c["sources"][0].update(kind="local_jsonl"), "cannot stand beside kind 'hub'|go with"),
        (
            lambda c: c.update(tokenizer={"vocab_size": VOCAB, "train_bytes": 9}),
            "go with a finished tokenizer",
        ),
        (lambda c: c["tokenizer"].update(revison="x"), "did you mean 'revision'"),
        (lambda c: c["sources"][0].update(category="crwl.high"), "did you mean 'crawl'"),
        (lambda c: c["sources"][0].update(category="crawl.High"), "a part is small letters"),
    ],
)
def test_wrong_hub_configurations_are_named(change, message, tmp_path):
    content = spec().model_dump(mode="json")
    change(content)
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_data_spec(tmp_path / "broken.yaml")
