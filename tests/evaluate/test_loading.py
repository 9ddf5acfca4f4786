"""Loading a Hugging Face folder: how it encodes questions, what it leaves alone on a CPU, what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from repro.evaluate.loading import load_lm
from repro.evaluate.settings import EvalSettings


def test_choice_without_a_space_before_it_keeps_its_first_token(
    tokenizer_dir: Path, settings: EvalSettings
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=300, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tokenizer_dir)
    lm = load_lm(tokenizer_dir, settings)
    joined = lm.tok_encode("next(self)")
    question, choice = lm._encode_pair("next(", "self)")
    assert lm.tokenizer.decode(choice) == "self)"
    assert lm.tokenizer.decode(question) == "next("
    assert joined[: len(question)] != question, "this tokenizer joins nothing: the test tests nothing"
    assert lm._encode_pair("   ", "x")[0], "an empty question must become the start token"


LOADS_A_HYBRID = """
import sys
from pathlib import Path
import torch
sys.path[:0] = {paths!r}
from conftest import MODEL, SETTINGS
from repro.evaluate.loading import load_lm
from repro.evaluate.settings import EvalSettings
from repro.experiments.model import ModelSpec
from repro.models import build_model
from repro.models.export import save_pretrained
spec, folder = ModelSpec.model_validate(MODEL), Path({folder!r})
save_pretrained(build_model(spec, seed=1), spec, folder)
lm = load_lm(folder, EvalSettings.model_validate(SETTINGS), device="cpu")
assert lm.model(torch.arange(64)[None]).logits.isfinite().all()
import mamba_ssm  # is there again
"""


def test_kernels_that_need_a_gpu_are_left_alone_on_a_cpu(tokenizer_dir: Path, tmp_path: Path) -> None:
    """mamba-ssm belongs to the cluster's environment, which the rehearsal without GPUs runs in as well."""
    kernels = tmp_path / "site" / "mamba_ssm" / "ops" / "triton"
    kernels.mkdir(parents=True)
    for folder in (kernels.parents[1], kernels.parent, kernels):
        (folder / "__init__.py").touch()
    fails = "def mamba_chunk_scan_combined(*args, **kwargs): raise RuntimeError('no GPU')\n"
    (kernels / "ssd_combined.py").write_text(fails, encoding="utf-8")
    paths = [str(tmp_path / "site"), str(Path(__file__).parent)]
    code = LOADS_A_HYBRID.format(paths=paths, folder=str(tokenizer_dir))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_folder_without_a_model_is_named(tmp_path: Path, settings: EvalSettings) -> None:
    with pytest.raises(ValueError, match=f"{tmp_path}: not readable as a Hugging Face model"):
        load_lm(tmp_path, settings)
