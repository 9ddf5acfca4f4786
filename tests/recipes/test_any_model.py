"""A recipe in models that others wrote, of Hugging Face transformers: biases, checkpointing, compiler, Trainer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recipe_variants import RECIPES
from torch import Tensor, nn

from repro.recipes import (
    QuantizedLinear,
    RunContext,
    apply_recipe,
    blocks_of,
    follow_training,
    layers_not_called,
    load_recipe,
)

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
}
NVFP4 = load_recipe(RECIPES / "nvfp4.yaml").with_changes({"bf16_blocks": {"first": 0, "last": 1}})
IDS = torch.randint(64, (2, 32), generator=torch.Generator().manual_seed(4))

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
on_both = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_GPU])])


def llama() -> nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).train()


def qwen2() -> nn.Module:
    """Its query, key and value projections have biases."""
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)).train()
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            nn.init.normal_(parameter, std=0.1)
    return model


def loss_and_gradients(model: nn.Module, call: Callable[..., object]) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    loss = call(input_ids=IDS, labels=IDS).loss
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("build", [llama, qwen2])
def test_every_linear_layer_of_the_blocks_runs_the_recipe(build) -> None:
    """Logits move by 0.10 and 0.12 of their norm; by 0.5 and more with weights twice as large or rows reversed."""
    model = build()
    plain = model(input_ids=IDS).logits
    blocks = blocks_of(model)
    record = apply_recipe(blocks, NVFP4, context=(context := RunContext(1)))
    assert len(record) == 3 * 7 * 6
    assert {line["block"] for line in record if line["format"] == "nvfp4"} == {0, 1}
    assert layers_not_called(blocks, lambda: model(input_ids=IDS)) == []
    moved = (model(input_ids=IDS).logits - plain).norm() / plain.norm()
    assert 0 < moved < 0.25
    _, gradients = loss_and_gradients(model, model)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert context.nonfinite == 0
    for name, block, layer in blocks.quantizable_linears():
        assert isinstance(layer, QuantizedLinear), name
        assert layer.weight.grad.dtype == torch.float32, (name, block)


def test_a_bias_is_added_to_the_rounded_product_and_the_sum_is_rounded() -> None:
    generator = torch.Generator().manual_seed(5)
    weight, bias, x = (torch.randn(shape, generator=generator) for shape in ((48, 32), (48,), (64, 32)))

    def layer(bias: nn.Parameter | None) -> QuantizedLinear:
        return QuantizedLinear(
            nn.Parameter(weight), NVFP4, name="l", block=0, context=RunContext(1), bias=bias
        )

    with_bias, without = layer(nn.Parameter(bias)), layer(None)
    y = with_bias(x)
    assert torch.equal(y, (without(x) + bias).bfloat16().float())
    assert not torch.equal(y, (without(x) + bias.bfloat16()).bfloat16().float()), (
        "the bias itself was rounded"
    )
    y.square().sum().backward()
    gradients = (
        (2 * y).detach().double()
    )  # BF16 values as y: the layer rounds nothing, it makes 64 FP32 additions
    limit = 64 * 2.0**-24 * gradients.abs().sum(0)
    assert ((with_bias.bias.grad - gradients.sum(0)).abs() <= limit).all()
    assert with_bias.weight.grad is not None


def test_weights_in_half_precision_are_refused_and_in_bf16_taken() -> None:
    with pytest.raises(
        ValueError, match=r"q_proj: weights are float32 or bfloat16, these are torch\.float16"
    ):
        apply_recipe(blocks_of(llama().half()), NVFP4, context=RunContext(1))
    model = llama().bfloat16()
    apply_recipe(blocks_of(model), NVFP4, context=RunContext(1))
    _, gradients = loss_and_gradients(model, model)
    assert {gradient.dtype for gradient in gradients.values()} == {torch.bfloat16}


@on_both
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "fp8_block", "bf16"])
def test_autocast_leaves_the_products_as_they_stand(name: str, device: str) -> None:
    """It would round FP32 operands, sums and transforms to BF16; also where the backward pass runs inside of it."""
    recipe = load_recipe(RECIPES / f"{name}.yaml")
    generator = torch.Generator().manual_seed(6)
    weight, x = (torch.randn(128, 256, generator=generator).to(device) for _ in range(2))

    def run(x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        layer = QuantizedLinear(nn.Parameter(weight), recipe, name="l", block=0, context=RunContext(1))
        y = layer(x)
        y.float().square().sum().backward()
        return [y.detach(), x.grad.float(), layer.weight.grad]

    with torch.autocast(device, dtype=torch.bfloat16):
        within = run(x)
    assert within[0].dtype == torch.bfloat16
    for one, other in zip(within, run(x.bfloat16()), strict=True):
        assert torch.equal(one, other)
    with (
        torch.autocast(device, dtype=torch.float16),
        pytest.raises(ValueError, match=r"autocast to torch\.float16"),
    ):
        run(x)


@pytest.mark.parametrize(("precision", "named"), [("high", "TF32"), ("medium", "BF16")])
def test_products_in_less_than_fp32_are_refused_whenever_they_were_asked_for(
    precision: str, named: str
) -> None:
    told = rf"FP32 products are computed in {named} here"
    model = llama()
    apply_recipe(blocks_of(model), NVFP4, context=RunContext(1))
    torch.set_float32_matmul_precision(precision)
    try:
        with pytest.raises(ValueError, match=told):
            model(input_ids=IDS)
        with pytest.raises(ValueError, match=told):
            apply_recipe(blocks_of(llama()), NVFP4, context=RunContext(1))
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_gives_the_same_bits(reentrant: bool) -> None:
    found = []
    for checkpointed in (False, True):
        model = llama()
        apply_recipe(blocks_of(model), NVFP4, context=RunContext(1))
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        found.append(loss_and_gradients(model, model))
    (loss, gradients), (other_loss, others) = found
    assert loss == other_loss
    for name, gradient in gradients.items():
        assert torch.equal(gradient, others[name]), name


@on_both
def test_compiled_blocks_run_the_layers_as_they_stand_with_fresh_bits_every_step(device: str) -> None:
    class Feed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(torch.relu(self.up(x)))

    torch.manual_seed(0)
    model = nn.ModuleDict({"blocks": nn.ModuleList([Feed(), Feed()])}).to(device)
    context = RunContext(1)
    apply_recipe(blocks_of(model), load_recipe(RECIPES / "nvfp4.yaml"), context=context)
    stack = nn.Sequential(*model["blocks"])
    compiled = torch.compile(stack, fullgraph=True)
    x, seen = torch.randn(32, 32).to(device), []
    for step in range(3):
        context.step = step
        for call in (stack, compiled):
            model.zero_grad()
            call(x).square().sum().backward()
            seen.append([parameter.grad.clone() for parameter in model.parameters()])
        for eager, other in zip(seen[-2], seen[-1], strict=True):
            assert torch.equal(eager, other), f"step {step}: compiled blocks give other gradients"
    assert not torch.equal(seen[0][0], seen[2][0]), "every step rounds with the bits of the first"


def test_the_trainer_of_transformers_moves_the_context(tmp_path) -> None:
    pytest.importorskip("accelerate")
    model = llama()
    context = RunContext(1)
    apply_recipe(blocks_of(model), NVFP4, context=context)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
    )
    data = [{"input_ids": row, "labels": row} for row in IDS.repeat(2, 1)]
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    follow_training(context, model, trainer.create_optimizer())
    moments = []
    model.register_forward_pre_hook(lambda *_: moments.append(context.moment))
    trainer.train()
    assert moments == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert context.step == 2
