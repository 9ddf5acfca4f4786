"""Exported folders: complete or refused, with messages that name file and parameter."""

import json

import pytest
import torch
from model_specs import small
from safetensors.torch import load_file

from repro.models import build_model, export
from repro.models.export import save_pretrained, write_pretrained


@pytest.fixture
def tokenizer_dir(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    vocabulary = {"a": 2, "b": 3}
    added = [
        {"id": 0, "content": "<|end|>", "special": True},
        {"id": 1, "content": "<|pad|>", "special": True},
    ]
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added})
    )
    settings = {"eos_token": "<|end|>", "pad_token": {"content": "<|pad|>"}, "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("kind", ["hybrid", "transformer"])
def test_saved_weights_come_back_to_the_bit(kind, tmp_path):
    spec = small(kind)
    model = build_model(spec, seed=1)
    weights = load_file(save_pretrained(model, spec, tmp_path / "out") / "model.safetensors")
    assert weights.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(weights[name], value), name


def test_the_tokenizer_travels_with_the_model_and_states_its_special_tokens(tmp_path, tokenizer_dir):
    spec = small("hybrid")
    folder = save_pretrained(build_model(spec, seed=1), spec, tmp_path / "out", tokenizer_dir=tokenizer_dir)
    config = json.loads((folder / "config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"], config["bos_token_id"]) == (0, 1, None)
    assert (folder / "tokenizer.json").read_text() == (tokenizer_dir / "tokenizer.json").read_text()
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_tokenizer_larger_than_the_vocabulary_is_refused_before_anything_is_written(
    tmp_path, tokenizer_dir
):
    spec = small("hybrid", vocab_size=3)
    with pytest.raises(ValueError, match=r"token id 3 does not fit the 3 tokens of small_hybrid"):
        save_pretrained(build_model(spec, seed=1), spec, tmp_path / "out", tokenizer_dir=tokenizer_dir)
    assert not (tmp_path / "out").exists()


def test_a_missing_tokenizer_file_is_named(tmp_path, tokenizer_dir):
    (tokenizer_dir / "tokenizer.json").unlink()
    spec = small("hybrid")
    with pytest.raises(ValueError, match=r"tokenizer\.json: no such file"):
        save_pretrained(build_model(spec, seed=1), spec, tmp_path / "out", tokenizer_dir=tokenizer_dir)


def test_weights_of_another_shape_are_refused_by_parameter_and_shape(tmp_path):
    narrow, wide = small("transformer"), small("transformer", ffn_hidden_size=64)
    with pytest.raises(
        ValueError, match=r"mlp\.up_proj\.weight has shape \[48, 32\], small_transformer needs \[64, 32\]"
    ):
        save_pretrained(build_model(narrow, seed=1), wide, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_are_missing_or_unknown_are_named(tmp_path):
    spec = small("hybrid")
    weights = dict(build_model(spec, seed=1).named_parameters())
    name, value = weights.popitem()
    with pytest.raises(ValueError, match=f"parameter {name} of small_hybrid is missing"):
        write_pretrained(weights, spec, tmp_path / "out")
    with pytest.raises(ValueError, match=r"small_hybrid has no parameter more \(1 unknown\)"):
        write_pretrained({**weights, name: value, "more": value}, spec, tmp_path / "out")


def test_a_full_disk_names_the_file_and_leaves_the_earlier_export_whole(tmp_path, monkeypatch):
    spec = small("hybrid")
    model = build_model(spec, seed=1)
    folder = save_pretrained(model, spec, tmp_path / "out")
    before = (folder / "model.safetensors").read_bytes()

    def full(_tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "save_file", full)
    with pytest.raises(OSError, match=r"model\.safetensors: could not be written .*No space left"):
        save_pretrained(build_model(spec, seed=2), spec, folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert not list(folder.glob(".*"))
