"""The quantised linear layer as a layer: against plain arithmetic, with zeros, with sizes that do not fit."""

from __future__ import annotations

import pytest
import torch
from recipe_variants import RECIPES, VARIANTS
from torch import nn
from watch import assert_rounds_to, bf16_values, expected_operand, watch

from repro.experiments.recipe import Recipe, load_recipe
from repro.numerics.operand import Operand
from repro.recipes import QuantizedLinear, RunContext, apply_recipe, blocks_of

ALL_RECIPES = ("bf16", "fp8_block", "mxfp4", "nvfp4")


def recipe(name: str) -> Recipe:
    return load_recipe(RECIPES / f"{name}.yaml")


def layer_of(rules: Recipe, num_outputs: int, num_inputs: int, *, name: str = "layer") -> QuantizedLinear:
    generator = torch.Generator().manual_seed(3)
    weight = nn.Parameter(torch.randn(num_outputs, num_inputs, generator=generator) / num_inputs**0.5)
    return QuantizedLinear(weight, rules, name=name, block=0, context=RunContext(7))


def test_bf16_recipe_is_a_plain_linear_on_bf16_values() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 33, 48, generator=generator)  # not BF16 values: the layer rounds them
    grad = torch.randn(4, 33, 40, generator=generator)
    layer = layer_of(recipe("bf16"), 40, 48)

    plain = nn.Linear(48, 40, bias=False)
    plain.weight.data = layer.weight.detach().bfloat16().float()
    x_plain = x.bfloat16().float().requires_grad_()
    y_plain = plain(x_plain)
    y_plain.backward(grad.bfloat16().float())

    x_ours = x.clone().requires_grad_()
    y_ours = layer(x_ours)
    y_ours.backward(grad)
    assert torch.equal(y_ours, y_plain.bfloat16().float())
    assert torch.equal(x_ours.grad, x_plain.grad.bfloat16().float())
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad, rtol=0, atol=132 * 2**-24 * 40)


def test_bf16_recipe_in_blocks_ignores_what_the_base_recipe_says() -> None:
    run = watch(recipe("nvfp4").in_bf16())
    for (gemm, operand), seen in run.seen.items():
        assert seen.plan.format is None, f"{gemm}.{operand}"
        assert torch.equal(seen.values, seen.original.bfloat16().float()), f"{gemm}.{operand}"


@pytest.mark.parametrize("name", ALL_RECIPES)
def test_bfloat16_storage_gives_what_float32_storage_gives(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = bf16_values(128, 64, generator=generator)
    grad = bf16_values(128, 32, generator=generator)
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        layer = layer_of(recipe(name), 32, 64)
        leaf = x.to(dtype, copy=True).requires_grad_()
        y = layer(leaf)
        y.backward(grad.to(dtype))
        assert y.dtype == leaf.grad.dtype == dtype
        assert layer.weight.grad.dtype == torch.float32
        results.append((y.float(), leaf.grad.float(), layer.weight.grad))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("zero", ["x", "w", "g", "all"])
@pytest.mark.parametrize("name", [*ALL_RECIPES, "1p2b_sr_backward", "1p2b_rht_fprop"])
def test_trial_03_zeros_stay_zeros_through_the_layer_and_its_gradients(name: str, zero: str) -> None:
    rules = VARIANTS[name].recipe() if name in VARIANTS else recipe(name)
    layer = layer_of(rules, 64, 128)
    generator = torch.Generator().manual_seed(2)
    x, grad = (bf16_values(128, size, generator=generator) for size in (128, 64))
    if zero in ("x", "all"):
        x.zero_()
    if zero in ("g", "all"):
        grad.zero_()
    if zero in ("w", "all"):
        layer.weight.data.zero_()
    x.requires_grad_()
    y = layer(x)
    y.backward(grad)
    for what, tensor in (("y", y), ("dx", x.grad), ("dw", layer.weight.grad)):
        assert tensor.isfinite().all(), f"{what} with zero {zero}"
    zeros = {"x": ("y", "dw"), "w": ("y", "dx"), "g": ("dx", "dw"), "all": ("y", "dx", "dw")}[zero]
    for what, tensor in (("y", y), ("dx", x.grad), ("dw", layer.weight.grad)):
        assert (tensor.count_nonzero() == 0) == (what in zeros), f"{what} with zero {zero}"
    assert layer.context.nonfinite == 0


@pytest.mark.parametrize("magnitude", [1e-35, 1e-30, 1e-20, 1e20])
def test_trial_10_tiny_and_huge_operands_keep_their_precision(magnitude: float) -> None:
    layer = layer_of(recipe("nvfp4"), 32, 64)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(16, 64, generator=generator) * magnitude
    y = layer(x)
    exact = x.double() @ layer.weight.detach().double().t()
    error = ((y.double() - exact).norm() / exact.norm()).item()
    assert error < 0.25, f"relative error {error} at magnitude {magnitude}"


def test_trial_10_two_tensor_scales_may_multiply_to_less_than_fp32_holds() -> None:
    """4096 products of 1e-35 and 1e-6 are a normal FP32 number; 1e-35/2688 times 1e-6/2688 is none at all."""
    layer = layer_of(recipe("nvfp4"), 16, 4096)
    layer.weight.data.fill_(1e-6)
    y = layer(torch.full((16, 4096), 1e-35))
    torch.testing.assert_close(y, torch.full((16, 16), 4096e-41), rtol=2**-7, atol=0)


@pytest.mark.parametrize(("scale_order", "scale"), [("te", 352), ("paper", 320)])
def test_trial_07_scale_order_of_the_recipe_reaches_the_operand(scale_order: str, scale: int) -> None:
    """Block amax 3.046875 under tensor amax 4.0625 lies on a rounding tie of E4M3."""
    seen: dict[str, torch.Tensor] = {}

    def observe(layer: str, gemm: str, operand: str, original: torch.Tensor, made, plan) -> None:
        seen[f"{gemm}.{operand}"] = made.values

    rules = recipe("nvfp4").with_changes({"fprop.*.scale_order": scale_order})
    weight = nn.Parameter(torch.ones(16, 32))
    layer = QuantizedLinear(weight, rules, name="layer", block=0, context=RunContext(1, observer=observe))
    x = torch.zeros(16, 32)
    x[0, 0], x[0, 16] = 4.0625, 3.046875
    layer(x)
    assert seen["fprop.x"][0, 16].item() == 6 * scale


@pytest.mark.parametrize(("size", "exactly"), [(4, True), (16, True), (2, False), (32, False), (128, False)])
def test_transform_of_unquantised_operands_leaves_the_weight_gradient_alone(size: int, exactly: bool) -> None:
    """Integers up to 2 transformed with an even power of two are exact in BF16, so the product is too."""
    changes = {"wgrad": {key: {"format": "bf16", "hadamard": size, "signs": "fixed"} for key in ("x", "g")}}
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(-2, 3, (256, 32), generator=generator).float()
    grad = torch.randint(-2, 3, (256, 48), generator=generator).float()
    layer = layer_of(recipe("bf16").with_changes(changes), 48, 32)
    layer(x.requires_grad_()).backward(grad)
    plain = grad.t() @ x.detach()
    if exactly:
        assert torch.equal(layer.weight.grad, plain)
    else:
        # Each transformed operand is rounded to BF16 once: a relative 2^-9 in norm at most, for each of the two.
        bound = 2 * 2**-9 * grad.norm() * x.detach().norm()
        assert (layer.weight.grad - plain).norm() <= bound
        assert not torch.equal(layer.weight.grad, plain), "no transform ran"


def test_transform_cancels_in_each_gemm_up_to_quantisation_noise() -> None:
    for gemm in ("fprop", "dgrad", "wgrad"):
        variant = VARIANTS[f"1p2b_rht_{gemm}"].recipe()
        run = watch(variant)
        exact = {
            "fprop": (run.y, run.x.detach() @ run.layer.weight.detach().t()),
            "dgrad": (run.dx, run.grad @ run.layer.weight.detach()),
            "wgrad": (run.dw, run.grad.t() @ run.x.detach()),
        }
        for key, (ours, plain) in exact.items():
            relative = ((ours - plain).norm() / plain.norm()).item()
            assert relative < 0.3, f"transform on {gemm}: {key} is off by {relative:.2f}"


@pytest.mark.parametrize("shape", [(7, 5, 3), (50, 100, 60), (33, 48, 130), (1, 16, 16)])
@pytest.mark.parametrize("name", ["fp8_block", "mxfp4", "nvfp4"])
def test_trial_11_sizes_that_are_no_multiple_of_the_tile(name: str, shape: tuple[int, int, int]) -> None:
    """Without a transform every size works: operands are those of the tensor padded with zeros, cut again."""
    run = watch(recipe(name).with_changes({"wgrad.*.hadamard": 0, "*.g.rounding": "rne"}), shape=shape)
    for (gemm, operand_name), seen in run.seen.items():
        rows, columns = seen.original.shape
        padded = nn.functional.pad(seen.original.float(), (0, -columns % 128, 0, -rows % 128))
        text = "2d rne" if operand_name == "w" else "1d rne"
        values, _ = expected_operand(padded, text, gemm, operand_name, format_name=name)
        assert torch.equal(seen.values, values[:rows, :columns]), f"{gemm}.{operand_name}"
    operand = {key: seen.dequantized() for key, seen in run.seen.items()}
    assert_rounds_to(run.y, operand["fprop", "x"], operand["fprop", "w"].t(), "y", to_bf16=True)
    assert_rounds_to(run.dx, operand["dgrad", "g"], operand["dgrad", "w"], "dx", to_bf16=True)
    assert_rounds_to(run.dw, operand["wgrad", "g"].t(), operand["wgrad", "x"], "dw", to_bf16=False)


def test_trial_12_tokens_that_do_not_fit_the_transform_are_an_error_at_the_first_forward() -> None:
    layer = layer_of(recipe("nvfp4"), 32, 64, name="model.layers.0.mixer.in_proj")
    with pytest.raises(
        ValueError, match=r"model\.layers\.0\.mixer\.in_proj.*wgrad.*tokens \(T\).*24 is no multiple"
    ):
        layer(torch.randn(24, 64))
    with torch.no_grad():  # no Wgrad follows: evaluation takes any number of tokens
        assert layer(torch.randn(24, 64)).shape == (24, 32)


@pytest.mark.parametrize(
    ("gemm", "shape", "dimension"),
    [("fprop", (32, 40), r"input features \(K\)"), ("dgrad", (40, 32), "output")],
)
def test_trial_12_features_that_do_not_fit_the_transform_are_an_error_at_once(
    gemm: str, shape: tuple[int, int], dimension: str
) -> None:
    with pytest.raises(
        ValueError, match=rf"layer odd: the 16x16 .* {gemm} .*{dimension}.* 40 is no multiple of 16"
    ):
        layer_of(VARIANTS[f"1p2b_rht_{gemm}"].recipe(), *shape, name="odd")


def test_input_of_another_width_is_an_error() -> None:
    with pytest.raises(ValueError, match="layer takes 64 features"):
        layer_of(recipe("nvfp4"), 32, 64)(torch.randn(16, 128))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64])
def test_input_of_another_dtype_is_an_error(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"layer takes float32 or bfloat16, got {dtype}"):
        layer_of(recipe("nvfp4"), 32, 64)(torch.ones(16, 64, dtype=dtype))


@pytest.mark.parametrize("name", ALL_RECIPES)
def test_leading_dimensions_and_strides_do_not_matter(name: str) -> None:
    generator = torch.Generator().manual_seed(6)
    x = bf16_values(128, 64, generator=generator)
    grad = bf16_values(128, 32, generator=generator)
    flat, deep = layer_of(recipe(name), 32, 64), layer_of(recipe(name), 32, 64)
    x_flat = x.clone().requires_grad_()
    y_flat = flat(x_flat)
    y_flat.backward(grad)
    x_deep = x.reshape(4, 32, 64).transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    y_deep = deep(x_deep)
    y_deep.backward(grad.t().contiguous().t().reshape(4, 32, 32))
    assert torch.equal(y_deep.reshape(128, 32), y_flat)
    assert torch.equal(x_deep.grad.reshape(128, 64), x_flat.grad)
    assert torch.equal(deep.weight.grad, flat.weight.grad)


@pytest.mark.parametrize("name", ["bf16", "nvfp4", "12b_without_2d"])
def test_what_is_kept_for_the_backward_pass(name: str) -> None:
    """Activations in BF16; of the weight a second copy only where Dgrad has to see the operand of Fprop."""
    rules = VARIANTS[name].recipe() if name in VARIANTS else recipe(name)
    layer = layer_of(rules, 32, 64)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        layer(torch.randn(128, 64, requires_grad=True))
    beside_weight = [t for t in kept if t.data_ptr() != layer.weight.data_ptr()]
    sizes = sorted((tuple(t.shape), t.dtype) for t in beside_weight if t.shape == (128, 64))
    assert sizes == [((128, 64), torch.bfloat16)]
    assert len(beside_weight) == (1 if name == "12b_without_2d" else 2)


def test_a_weight_that_both_passes_share_is_quantised_once() -> None:
    made: dict[str, torch.Tensor] = {}

    def observe(_layer: str, gemm: str, operand: str, _original: torch.Tensor, found: Operand, _plan) -> None:
        if operand == "w":
            made[gemm] = found.values

    context = RunContext(1, observer=observe)
    layer = QuantizedLinear(
        nn.Parameter(torch.randn(32, 64)), recipe("nvfp4"), name="first", block=0, context=context
    )
    layer(torch.randn(32, 64, requires_grad=True)).sum().backward()
    assert made["dgrad"].data_ptr() == made["fprop"].data_ptr(), "Dgrad made the operand of Fprop again"


def test_only_the_gemms_that_are_needed_run() -> None:
    calls: list[str] = []
    context = RunContext(1, observer=lambda layer, gemm, operand, *_: calls.append(f"{gemm}.{operand}"))
    weight = nn.Parameter(torch.randn(32, 64))
    layer = QuantizedLinear(weight, recipe("nvfp4"), name="first", block=0, context=context)
    layer(torch.randn(32, 64)).sum().backward()  # the input needs no gradient
    assert calls == ["fprop.x", "fprop.w", "wgrad.x", "wgrad.g"]
    calls.clear()
    weight.requires_grad_(False)
    layer(torch.randn(32, 64, requires_grad=True)).sum().backward()
    assert calls == ["fprop.x", "fprop.w", "dgrad.g", "dgrad.w"]


def test_building_and_running_a_layer_leaves_torch_generators_alone() -> None:
    before = torch.get_rng_state()
    layer = layer_of(recipe("nvfp4"), 32, 64)
    layer(torch.ones(32, 64, requires_grad=True)).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_state_dict_is_that_of_a_plain_linear() -> None:
    layer = layer_of(recipe("nvfp4"), 32, 64)
    assert list(layer.state_dict()) == ["weight"]
    assert isinstance(layer, nn.Linear)
    assert layer.bias is None
    assert layer.weight.shape == (32, 64)
    assert "fprop=nvfp4xnvfp4" in repr(layer)


class Mixture(nn.Module):
    """Each token goes to one of three experts, by the sign of its first features; nobody asks for the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleList(nn.Linear(32, 48) for _ in range(3))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_zeros(*x.shape[:-1], 48)
        chosen = (x[..., 0] > 0).long()
        for number, expert in enumerate(self.layers[0]):
            y[chosen == number] = expert(x[chosen == number])
        return y


@pytest.mark.parametrize("name", [*ALL_RECIPES, "1p2b_rht_fprop"])
def test_an_expert_that_gets_no_token_gives_none_and_a_gradient_of_zeros(name: str) -> None:
    rules = VARIANTS[name].recipe() if name in VARIANTS else recipe(name)
    model, context = Mixture(), RunContext(1)
    rules = rules.with_changes({"bf16_blocks": {"first": 0, "last": 0}})
    apply_recipe(blocks_of(model), rules, context=context)
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    x[:32, 0], x[32:, 0] = -1, 1  # a multiple of the transform's size each
    with torch.no_grad():
        assert torch.equal(model.eval()(x), model.train()(x))
    leaf = x.clone().requires_grad_()
    model(leaf).square().sum().backward()
    *used, unused = model.layers[0]
    assert all(expert.weight.grad.count_nonzero() and expert.bias.grad.count_nonzero() for expert in used)
    assert not unused.weight.grad.count_nonzero()
    assert not unused.bias.grad.count_nonzero()
    assert unused.weight.grad.shape == unused.weight.shape
    assert context.nonfinite == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ALL_RECIPES)
def test_no_tokens_have_the_shapes_and_dtypes_of_some(name: str, dtype: torch.dtype) -> None:
    layer = layer_of(recipe(name), 32, 64)
    x = torch.zeros(2, 0, 64, dtype=dtype, requires_grad=True)
    y = layer(x)
    assert (y.shape, y.dtype) == ((2, 0, 32), dtype)
    y.sum().backward()
    assert (x.grad.shape, x.grad.dtype) == (x.shape, dtype)
    assert layer.weight.grad.dtype == torch.float32
    assert torch.equal(layer.weight.grad, torch.zeros(32, 64))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_any_number_of_tokens_fits_a_frozen_weight() -> None:
    """Wgrad's transform acts along the tokens, and no Wgrad runs."""
    layer = layer_of(recipe("nvfp4"), 32, 64)
    x = torch.randn(7, 64, requires_grad=True)
    with pytest.raises(ValueError, match="7 is no multiple of 16"):
        layer(x)
    layer.weight.requires_grad_(False)
    layer(x).sum().backward()
    assert x.grad.count_nonzero()


@pytest.mark.parametrize("name", ["nvfp4", "bf16", "fp8_block"])
def test_a_gradient_of_the_gradient_is_refused(name: str) -> None:
    """It would be taken through operands that carry none, and be another number without a word."""
    weight = nn.Parameter(torch.randn(128, 128, generator=torch.Generator().manual_seed(1)))
    layer = QuantizedLinear(
        weight, load_recipe(RECIPES / f"{name}.yaml"), name="l", block=0, context=RunContext(1)
    )
    x = torch.randn(128, 128, generator=torch.Generator().manual_seed(2)).requires_grad_()
    (dx,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dx.square().sum().backward()
