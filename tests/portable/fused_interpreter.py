"""Training by the Triton kernels in their interpreter, the FP8 layer of a GPU included, and by the PyTorch reference.

As a script under TRITON_INTERPRET=1 it trains a smaller model than small_segment's and prints one line per check.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from fused_cases import ALL_RECIPES, assert_close, exact_products, fused_path, reference_path, train
from small_segment import MODEL, RECIPES, SEQUENCE, freeze, write_data


def freeze_smaller(folder: Path, recipe: str, num_steps: int) -> Path:
    """Attention and a feed-forward, one sequence a step: the interpreter takes two seconds a step, where it takes
    fifteen for the model of small_segment."""
    model = {key: value for key, value in MODEL.items() if not key.startswith("mamba")}
    tokens = {
        "horizon_tokens": 20 * SEQUENCE,
        "start_tokens": 0,
        "end_tokens": num_steps * SEQUENCE,
        "sequence_length_tokens": SEQUENCE,
        "batch_sequences": 1,
        "micro_batch_sequences": 1,
        "warmup_tokens": 2 * SEQUENCE,
        "decay_start_tokens": 16 * SEQUENCE,
        "learning_rate_max": 3e-3,
        "learning_rate_min": 3e-5,
        "decay_shape": "linear",
    }
    # Of this process alone: freeze takes the name of a recipe.
    RECIPES["smaller"] = lambda: ALL_RECIPES[recipe]() | {"bf16_blocks": {"first": 0, "last": 0}}
    blend = {"until_tokens": 20 * SEQUENCE, "blend": {"code": 0.5, "prose": 0.5}}
    return freeze(
        folder,
        recipe="smaller",
        model=model | {"pattern": "*-"},
        schedule=tokens,
        data={"name": "test", "seed": 7, "phases": [blend]},
        validation={"sequences": 2, "every_tokens": 20 * SEQUENCE},
        checkpoints={"every_tokens": 20 * SEQUENCE, "keep_last": 2, "keep_tokens": []},
    )


def in_interpreter(recipe: str, num_steps: int):
    """(fused, reference): the records of both."""
    with tempfile.TemporaryDirectory() as folder:
        data, path = (
            write_data(Path(folder) / "data"),
            freeze_smaller(Path(folder) / "run", recipe, num_steps),
        )
        with fused_path("interpreter", has_fp8_layer=recipe == "fp8"):
            fused = train(path, data, Path(folder) / "fused", like_a_gpu=True)
        with reference_path():
            return fused, train(path, data, Path(folder) / "reference", like_a_gpu=True)


def check_equal(recipe: str, num_steps: int) -> None:
    fused, plain = in_interpreter(recipe, num_steps)
    assert fused == plain


def check_fp8_exact(num_steps: int) -> None:
    with exact_products():
        check_equal("fp8", num_steps)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # One step of NVFP4, and the validation after it with the weights that the step made: 20 would take a minute.
    # MXFP4 differs in the kernel alone, and gpu_cases.py has that.
    checks = {
        "nvfp4": lambda: check_equal("nvfp4", 1),
        "fp8, exact products": lambda: check_fp8_exact(2),
        "fp8, emulated product": lambda: assert_close(*in_interpreter("fp8", 2), "emulated"),
    }
    for name, check in checks.items():
        check()
        print(f"passed {name}", flush=True)
    sys.exit(0)
