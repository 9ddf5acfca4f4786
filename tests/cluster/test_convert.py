"""Checkpoints of megatron-core as Hugging Face models: the same function, every name accounted for, damage told.

megatron_core_0_19_2_checkpoints/ holds the weights of two small models as torch_dist saved them after four training
steps of megatron-core 0.19.2's own entry point, and the logits that its HybridModel computed from them in FP32 on
`tokens`. The layers were megatron-core's local ones, on a CPU, around this project's scan; TE's have a norm of their
own, which the hardware tests cover.
"""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint import load as load_tensors
from torch.distributed.checkpoint import save as save_tensors

from repro.cluster import state
from repro.cluster.convert import name_map, read_weights, to_hugging_face
from repro.cluster.finished import load_model
from repro.evaluate.export import export
from repro.experiments.model import ModelSpec
from repro.models import build_model
from repro.portable.finished import CheckpointPoint

FIXTURES = Path(__file__).parent / "megatron_core_0_19_2_checkpoints"
STEP = 4
KINDS = pytest.mark.parametrize("kind", ["hybrid", "transformer"])


def spec_of(kind):
    return ModelSpec.model_validate(yaml.safe_load((FIXTURES / kind / "model.yaml").read_text()))


@pytest.fixture
def state_dir(tmp_path):
    """make("hybrid", change): the state folder of a segment that saved step 4; `change` edits its tensors."""

    def make(kind, change=None):
        folder = tmp_path / "state" / kind
        checkpoint = state.tensors_folder(folder, STEP)
        shutil.copytree(FIXTURES / kind / "checkpoint", checkpoint)
        if change is not None:
            tensors = raw(checkpoint)
            change(tensors)
            shutil.rmtree(checkpoint)
            save_tensors(tensors, storage_writer=FileSystemWriter(checkpoint), no_dist=True)
        state.write_meta(folder, STEP, {"step": STEP})
        return folder

    return make


def raw(checkpoint):
    reader = FileSystemReader(checkpoint)
    tensors = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in reader.read_metadata().state_dict_metadata.items()
    }
    load_tensors(tensors, storage_reader=reader, no_dist=True)
    return tensors


@KINDS
@pytest.mark.usefixtures("transformers_in_pytorch")
def test_transformers_computes_the_logits_of_megatrons_model(kind, state_dir, tmp_path):
    from transformers import AutoModelForCausalLM

    folder = to_hugging_face(state_dir(kind), STEP, spec_of(kind), tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    recorded = load_file(FIXTURES / kind / "logits.safetensors")
    with torch.no_grad():
        found = model(recorded["tokens"]).logits
    # Both in FP32, in another order of sums; a misplaced row moves logits by their own size.
    bound = 1e-5 * recorded["logits"].std()
    torch.testing.assert_close(found, recorded["logits"], rtol=0, atol=float(bound))


def test_weights_are_copied_to_the_bit_in_the_dtype_of_the_checkpoint(state_dir):
    folder = state_dir("hybrid")
    tensors, weights = (
        raw(state.tensors_folder(folder, STEP)),
        read_weights(state.tensors_folder(folder, STEP), spec_of("hybrid")),
    )
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert sum(w.numel() for w in weights.values()) == sum(t.numel() for t in tensors.values())
    ours = torch.cat([weight.flatten() for weight in weights.values()]).sort().values
    assert torch.equal(ours, torch.cat([tensor.flatten() for tensor in tensors.values()]).sort().values)


@pytest.mark.parametrize("run", ["12b_nvfp4", "8b_bf16", "1p2b_bf16"])
def test_every_parameter_of_the_papers_models_has_one_source(segment, run):
    spec = segment(run).model
    names = [source.name for source in name_map(spec)]
    assert sorted(names) == sorted(name for name, _ in build_model(spec, device="meta").named_parameters())
    keys = [key for source in name_map(spec) if source.part in (None, "q") for key in source.keys]
    assert len(keys) == len(set(keys)), "no tensor serves two parameters, q, k and v of one apart"


@KINDS
def test_norms_that_transformer_engine_fuses_into_the_layer_after_them_are_found(kind, state_dir, tmp_path):
    fused = {
        ".norm.weight": ".mixer.in_proj.layer_norm_weight",
        ".pre_mlp_layernorm.weight": ".mlp.linear_fc1.layer_norm_weight",
        ".input_layernorm.weight": ".self_attention.linear_qkv.layer_norm_weight",
    }

    def fuse(tensors):
        for key in [key for key in tensors if "mixer.norm" not in key]:
            for own, other in fused.items():
                if key.endswith(own):
                    tensors[key.removesuffix(own) + other] = tensors.pop(key)

    spec = spec_of(kind)
    plain = read_weights(FIXTURES / kind / "checkpoint", spec)
    renamed = read_weights(state.tensors_folder(state_dir(kind, fuse), STEP), spec)
    assert all(torch.equal(plain[name], renamed[name]) for name in plain)


def test_a_missing_tensor_is_named_with_the_parameter_that_needs_it(state_dir, tmp_path):
    def drop(tensors):
        del tensors["decoder.layers.0.mixer.in_proj.weight.dt"]

    folder = state_dir("hybrid", drop)
    with pytest.raises(
        ValueError, match=r"no tensor decoder\.layers\.0\.mixer\.in_proj\.weight\.dt for model\.layers\.0\."
    ):
        to_hugging_face(folder, STEP, spec_of("hybrid"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_weight_that_is_not_finite_is_refused(state_dir, tmp_path):
    def break_one(tensors):
        tensors["output_layer.weight"][3, 5] = torch.nan

    with pytest.raises(ValueError, match=r"output_layer\.weight holds a non-finite value"):
        to_hugging_face(state_dir("hybrid", break_one), STEP, spec_of("hybrid"), tmp_path / "out")


def test_a_checkpoint_of_another_model_is_refused_by_parameter_and_shape(state_dir, tmp_path):
    wide = spec_of("hybrid").model_copy(update={"ffn_hidden_size": 64})
    with pytest.raises(ValueError, match=r"up_proj\.weight has shape \[32, 16\], .* needs \[64, 16\]"):
        to_hugging_face(state_dir("hybrid"), STEP, wide, tmp_path / "out")


def test_a_checkpoint_with_other_heads_is_refused(state_dir, tmp_path):
    other = spec_of("hybrid").model_copy(update={"num_key_value_heads": 1})
    with pytest.raises(ValueError, match=r"linear_qkv of the checkpoint has 64 rows, .* needs 48"):
        to_hugging_face(state_dir("hybrid"), STEP, other, tmp_path / "out")


def test_a_step_that_was_not_kept_is_told_with_those_that_were(state_dir, tmp_path):
    with pytest.raises(ValueError, match=r"no complete checkpoint at step 7; there are: \[4\]"):
        to_hugging_face(state_dir("hybrid"), 7, spec_of("hybrid"), tmp_path / "out")


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_truncated_file_is_an_error_that_names_the_checkpoint(state_dir, tmp_path, name):
    folder = state_dir("hybrid")
    path = state.tensors_folder(folder, STEP) / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"iter_0000004: not readable as a torch_dist checkpoint"):
        to_hugging_face(folder, STEP, spec_of("hybrid"), tmp_path / "out")


def point_of(state_dir, **changes):
    frozen = {
        "backend": "cluster",
        "model": {**yaml.safe_load((FIXTURES / "hybrid" / "model.yaml").read_text()), **changes},
        "schedule": {"batch_sequences": 4, "sequence_length_tokens": 32},
    }
    return CheckpointPoint("run", STEP * 4 * 32, 1.0, state_dir("hybrid"), frozen)


def test_measurements_read_the_model_of_a_cluster_runs_checkpoint(state_dir):
    recorded = load_file(FIXTURES / "hybrid" / "logits.safetensors")
    with torch.no_grad():
        found = load_model(point_of(state_dir))(recorded["tokens"])
    bound = float(1e-5 * recorded["logits"].std())
    torch.testing.assert_close(found, recorded["logits"], rtol=0, atol=bound)


def test_a_checkpoint_of_another_model_than_the_runs_is_refused(state_dir):
    with pytest.raises(ValueError, match=r"iter_0000004: does not fit: "):
        load_model(point_of(state_dir, ffn_hidden_size=64))


def test_evaluation_reads_a_cluster_runs_checkpoint(state_dir, tmp_path):
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 1}}}')
    (tokenizer / "tokenizer_config.json").write_text("{}")
    folder = export(point_of(state_dir), tmp_path / "out", tokenizer_dir=tokenizer)
    weights = load_file(folder / "model.safetensors")
    assert torch.equal(
        weights["lm_head.weight"], raw(FIXTURES / "hybrid" / "checkpoint")["output_layer.weight"]
    )
    assert (folder / "tokenizer.json").exists()
