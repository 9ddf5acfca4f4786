"""Training with the fused kernels against training with the PyTorch reference: the same losses, to the bit.

The fused path is what trains: the C++ kernel on a CPU, the Triton kernels on a GPU. Both paths hand the same operands
to the same products in the same order, so not one bit may differ. The FP8 layer of a GPU has products of its own: its
operands are compared to the bit with products that are exact, its losses within a bound that follows from the error
of its product (fused_cases.assert_close).
"""

from pathlib import Path

import fused_cases
import pytest
import torch
from fused_cases import exact_products, fused_path, reference_path, train
from interpreter import needs_triton, printed
from small_segment import RECIPES, freeze

from repro.numerics.cpu import binding as cpu_binding
from repro.portable.graph import SWITCH
from repro.recipes import linear

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def both_paths(folder, data_dir, recipe, device, *, has_fp8_layer=False, emulate_fp8=False):
    """(fused, reference): the records of 20 steps of both."""
    path = freeze(folder / "run", recipe=recipe)
    with fused_path(device, has_fp8_layer=has_fp8_layer):
        fused = train(path, data_dir, folder / "fused", device, emulate_fp8=emulate_fp8)
    with reference_path():
        return fused, train(path, data_dir, folder / "reference", device)


@pytest.fixture(autouse=True)
def recipes(monkeypatch):
    for name, recipe in fused_cases.ALL_RECIPES.items():
        monkeypatch.setitem(RECIPES, name, recipe)


@pytest.mark.parametrize(
    "device",
    [
        pytest.param(
            "cpu",
            marks=pytest.mark.skipif(
                cpu_binding.kernel() is None, reason="no C++ compiler: nothing is fused"
            ),
        ),
        pytest.param("cuda", marks=ON_GPU),
    ],
)
@pytest.mark.parametrize("recipe", ["nvfp4", "fp8", "mxfp4"])
def test_20_steps_with_fused_kernels_give_the_losses_of_the_reference(tmp_path, data_dir, recipe, device):
    """FP8 by linear.py on both sides, as where a rule is not the baseline's."""
    fused, plain = both_paths(tmp_path, data_dir, recipe, device)
    for one, other in zip(fused, plain, strict=True):
        assert one == other


@needs_triton
def test_steps_in_tritons_interpreter_give_the_losses_of_the_reference():
    said = printed(Path(__file__).with_name("fused_interpreter.py"))
    assert said.count("passed") == 3, said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_20_steps_of_the_fp8_layer_with_exact_products_give_the_losses_of_the_reference(
    tmp_path, data_dir, monkeypatch
):
    monkeypatch.setenv(SWITCH, "0")  # the exact products copy from the host, which a CUDA graph refuses
    with exact_products():
        fused, plain = both_paths(tmp_path, data_dir, "fp8", "cuda", has_fp8_layer=True)
    for one, other in zip(fused, plain, strict=True):
        assert one == other


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("product", ["card", "emulated"])
def test_20_steps_of_the_fp8_layer_give_the_losses_of_the_reference_up_to_its_product(
    tmp_path, data_dir, product
):
    from repro.numerics.gpu.fp8_product import obstacle

    if product == "card" and (reason := obstacle(torch.device("cuda", 0))):
        pytest.skip(reason)
    emulate = product == "emulated"
    records = both_paths(tmp_path, data_dir, "fp8", "cuda", has_fp8_layer=True, emulate_fp8=emulate)
    nvfp4 = train(freeze(tmp_path / "nvfp4", recipe="nvfp4"), data_dir, tmp_path / "nvfp4_state", "cuda")
    fused_cases.assert_close(*records, product, nvfp4)


def test_losses_under_the_error_of_the_cards_product_stay_within_the_bound(tmp_path, data_dir, monkeypatch):
    """`assert_close`, with the error that was measured put into every FP8 product of the reference: at random, and
    4e-5 toward zero. Activations are BF16, as on a GPU."""
    path = freeze(tmp_path / "run", recipe="fp8")
    plain = train(path, data_dir, tmp_path / "plain", like_a_gpu=True)
    generator = torch.Generator().manual_seed(1)

    def inexact(a, b, left, right, *, dtype):
        exact = left.float() @ right.float()
        noise = torch.randn(exact.shape, generator=generator) * exact.square().mean().sqrt()
        return (exact * (1 - 4e-5) + fused_cases.PRODUCT_ERRORS["card"] * noise).to(dtype)

    with monkeypatch.context() as patch:
        patch.setattr(linear, "operand_product", inexact)
        moved = train(path, data_dir, tmp_path / "moved", like_a_gpu=True)
    assert moved != plain
    path = freeze(tmp_path / "nvfp4", recipe="nvfp4")
    nvfp4 = train(path, data_dir, tmp_path / "nvfp4_state", like_a_gpu=True)
    fused_cases.assert_close(moved, plain, "card", nvfp4)
