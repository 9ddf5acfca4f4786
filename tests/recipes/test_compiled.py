"""The layer as one operator of a compiled graph: bits and counts of eager, and one graph for equal blocks.

The backend "aot_eager" runs every operator of the graph as PyTorch does. "inductor" adds up norms and softmaxes in
another order than PyTorch, so what it compiles here has none: then the bits are those of eager too.
"""

from __future__ import annotations

import copy
import gc
import shutil
from collections.abc import Callable, Iterator

import pytest
import torch
from recipe_variants import RECIPES, VARIANTS
from torch import Tensor, nn
from torch._dynamo.utils import counters

from repro.experiments.recipe import Recipe
from repro.recipes import QuantizedLinear, RunContext, apply_recipe, blocks_of, follow_training, load_recipe
from repro.recipes.recording import Recording

NVFP4 = load_recipe(RECIPES / "nvfp4.yaml").with_changes({"bf16_blocks": {"first": 0, "last": 0}})
INDUCTOR = "inductor" if shutil.which("g++") else "aot_eager"
WIDTH = 32


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def recipe_of(variant: str) -> Recipe:
    return VARIANTS[variant].recipe().with_changes({"bf16_blocks": {"first": 0, "last": 0}})


class Feed(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 64, bias=bias), nn.Linear(64, WIDTH, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    """Blocks whose operations between the layers round alike wherever they are computed."""

    def __init__(self, num_blocks: int = 2, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Feed(bias) for _ in range(num_blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.layers:
            x = block(x)
        return x


def compile_blocks(model: nn.Module, backend: str) -> nn.Module:
    for block in model.layers:
        block.compile(backend=backend, fullgraph=True)
    return model


def stack_run(
    prepare: Callable[[nn.Module], nn.Module] | None,
    recipe: Recipe = NVFP4,
    *,
    dtype: torch.dtype = torch.float32,
    bias: bool = False,
    observer: object = None,
    late: bool = False,
    weights: torch.dtype = torch.float32,
    device: str = "cpu",
) -> list[Tensor]:
    """y, the gradients of x and of all parameters, and the count of non-finite operands, of four steps.

    late: the context moves on to another micro batch before the backward pass.
    """
    model, context = Stack(bias=bias).to(device, weights), RunContext(1, observer=observer)
    apply_recipe(blocks_of(model), recipe, context=context)
    call = model if prepare is None else prepare(model)
    generator = torch.Generator().manual_seed(1)
    found = []
    for step in range(4):
        context.step, context.microbatch = step, 2
        x = torch.randn(2, 32, WIDTH, generator=generator).to(device, dtype)
        if step == 1:
            x[0, 0, 0] = float("inf")
        x.requires_grad_()
        y = call(x)
        context.microbatch = 7 if late else 2
        grads = torch.autograd.grad(y.float().square().sum(), (x, *model.parameters()))
        # Copies: a CUDA graph writes its results to the same place again.
        found += [t.detach().clone() for t in (y, *grads)] + [torch.tensor(context.nonfinite)]
    return found


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        assert a.dtype == b.dtype, number
        assert torch.equal(a.isnan(), b.isnan()), number  # which is never equal to itself
        assert torch.equal(a.nan_to_num(), b.nan_to_num()), number


@pytest.mark.parametrize("backend", ["eager", "aot_eager", INDUCTOR])
@pytest.mark.parametrize("bias", [False, True])
def test_a_compiled_stack_gives_the_bits_and_counts_of_eager(backend: str, bias: bool) -> None:
    eager = stack_run(None, bias=bias)
    counts = eager[len(eager) // 4 - 1 :: len(eager) // 4]
    assert [bool(count) for count in counts] == [False, True, False, False], (
        "an infinite activation is counted"
    )
    whole = stack_run(lambda model: torch.compile(model, backend=backend, fullgraph=True), bias=bias)
    assert_same(eager, whole)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(
    "variant",
    [
        "12b_nvfp4",
        "12b_without_2d",
        "12b_signs_per_transform",
        "1p2b_sr_activations",
        "8b_mxfp4",
        "12b_fp8",
        "8b_bf16",
    ],
)
def test_every_recipe_keeps_what_its_backward_pass_needs(
    variant: str, paired: bool, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    """Paired: as on a GPU, where x's operand of Wgrad is kept; the context has moved on by the backward pass."""
    made = request.getfixturevalue("pairs") if paired else None
    recipe = recipe_of(variant)
    eager = stack_run(None, recipe, dtype=dtype, late=True)
    num_pairs = len(made) if paired else 0
    compiled = stack_run(lambda model: compile_blocks(model, "aot_eager"), recipe, dtype=dtype, late=True)
    assert_same(eager, compiled)
    if paired:
        assert len(made) == 2 * num_pairs
        assert (num_pairs > 0) == (variant not in ("12b_fp8", "8b_bf16"))


@pytest.mark.parametrize("variant", ["12b_nvfp4", "8b_bf16"])
def test_weights_and_biases_in_bf16_get_their_gradients_in_bf16(variant: str) -> None:
    bf16 = {"dtype": torch.bfloat16, "weights": torch.bfloat16, "bias": True}
    compiled = stack_run(lambda model: compile_blocks(model, "aot_eager"), recipe_of(variant), **bf16)
    assert_same(stack_run(None, recipe_of(variant), **bf16), compiled)


@pytest.mark.parametrize(
    ("variant", "others"), [("12b_nvfp4", [(80,)]), ("12b_without_rht", [(80,), (2, 2, 7), ()])]
)
def test_another_number_of_tokens_takes_one_graph_more_and_so_does_another_rank(
    variant: str, others: list[tuple[int, ...]]
) -> None:
    layer, _ = a_layer(bias=True, recipe=recipe_of(variant))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for shape in [(2, 16), (4, 16), (6, 16), (8, 16), *others]:
        x = torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
        wanted = x, layer.weight, layer.bias
        assert_same(*(torch.autograd.grad(call(x).square().sum(), wanted) for call in (layer, compiled)))
    assert counters["stats"]["unique_graphs"] == 2 + len(others)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize(
    "variant", ["12b_nvfp4", "12b_without_2d", "12b_signs_per_transform", "8b_mxfp4", "8b_bf16"]
)
def test_a_gpu_gives_the_bits_and_counts_of_eager_also_where_it_replays_graphs(
    variant: str, mode: str
) -> None:
    def compiled(model: nn.Module) -> nn.Module:
        return torch.compile(model, mode=mode, fullgraph=True)

    given = {"recipe": recipe_of(variant), "bias": True, "late": True, "device": "cuda"}
    assert_same(stack_run(None, **given), stack_run(compiled, **given))


def small_llama(num_blocks: int) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(num_hidden_layers=num_blocks, use_cache=False, **sizes)
    return transformers.LlamaForCausalLM(config).train()


def llama_run(prepare: Callable[[nn.Module], object], *, autocast: bool = False) -> list[Tensor]:
    """Losses and all gradients of two steps of two micro batches."""
    model, context = small_llama(12), RunContext(1)
    apply_recipe(blocks_of(model), NVFP4, context=context)
    prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    follow_training(context, model, optimizer)
    ids = torch.randint(64, (2, 32), generator=torch.Generator().manual_seed(4))
    found = []
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            found.append(loss.detach())
        found += [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
    return found


@pytest.mark.parametrize(("checkpointed", "autocast"), [(False, True), (True, False)])
def test_twelve_blocks_of_a_llama_share_one_graph_and_give_the_bits_of_eager(
    checkpointed: bool, autocast: bool
) -> None:
    def prepare(model: nn.Module) -> None:
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})

    def prepare_and_compile(model: nn.Module) -> None:
        prepare(model)
        for block in model.model.layers:
            block.compile(backend="aot_eager", fullgraph=True)

    eager = llama_run(prepare, autocast=autocast)
    assert_same(eager, llama_run(prepare_and_compile, autocast=autocast))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_a_model_compiled_with_its_loss_rounds_as_of_the_micro_batch_that_its_hook_sets() -> None:
    """The hook is compiled with the model; put at the end of the graph it would move the context too late."""

    def run(backend: str | None) -> list[Tensor]:
        model, context = Stack(), RunContext(1)
        apply_recipe(blocks_of(model), NVFP4, context=context)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        follow_training(context, model, optimizer)

        def loss_of(x: Tensor) -> Tensor:
            return model(x).square().sum()

        call = loss_of if backend is None else torch.compile(loss_of, backend=backend)
        x, found = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(1)), []
        for _ in range(2):
            optimizer.zero_grad()
            for microbatch in range(3):
                call(x).backward()
                assert context.microbatch == microbatch
            found += [parameter.grad.clone() for parameter in model.parameters()]
            optimizer.step()
        return found

    assert_same(run(None), run("aot_eager"))


@pytest.mark.parametrize("followed", ["compiled", "plain"])
def test_a_whole_graph_takes_the_compiled_model_to_be_followed(followed: str) -> None:
    model, context = Stack(), RunContext(1)
    apply_recipe(blocks_of(model), NVFP4, context=context)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    follow_training(context, compiled if followed == "compiled" else model, optimizer)
    x = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(1))
    if followed == "plain":
        with pytest.raises(
            torch._dynamo.exc.Unsupported, match=r"give follow_training what torch\.compile returned"
        ):
            compiled(x)
        return
    for step in range(2):
        for microbatch in range(2):
            compiled(x).square().sum().backward()
            assert context.moment == (step, microbatch)
        optimizer.step()
    assert counters["stats"]["unique_graphs"] == 1


def test_a_step_that_begins_inside_of_a_compiled_function_begins_before_the_layers() -> None:
    layer, context = a_layer()
    x = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(1))

    def two_steps(x: Tensor) -> tuple[Tensor, Tensor]:
        context.step = 3
        one = layer(x).square().sum()
        context.step = 4
        return one, layer(x).square().sum()

    def gradients(call: Callable[[Tensor], tuple[Tensor, Tensor]]) -> list[Tensor]:
        context.step = 0
        return [torch.autograd.grad(y, layer.weight)[0] for y in call(x)]

    eager = gradients(two_steps)
    assert not torch.equal(*eager)
    assert_same(eager, gradients(torch.compile(two_steps, backend="aot_eager")))
    torch._dynamo.reset()  # what was compiled above would be taken again
    with pytest.raises(torch._dynamo.exc.Unsupported, match="what the quantised layers read changes here"):
        gradients(torch.compile(two_steps, backend="aot_eager", fullgraph=True))


def a_layer(bias: bool = False, recipe: Recipe = NVFP4) -> tuple[QuantizedLinear, RunContext]:
    context = RunContext(1)
    generator = torch.Generator().manual_seed(5)
    weight, b = (nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((48, WIDTH), (48,)))
    layer = QuantizedLinear(weight, recipe, name="l", block=0, context=context, bias=b if bias else None)
    return layer, context


@pytest.mark.parametrize("frozen", ["x", "weight", "bias", "x and weight"])
def test_gradients_that_nobody_needs_are_not_made(frozen: str) -> None:
    def run(compiled: bool) -> list[Tensor]:
        layer, _ = a_layer(bias=True)
        x = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_(
            "x" not in frozen
        )
        layer.weight.requires_grad_("weight" not in frozen)
        layer.bias.requires_grad_(frozen != "bias")
        call = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
        with layer.context.recorded_by(Recording(1, torch.device("cpu"))) as amaxes:
            y = call(x)
            y.square().sum().backward()
        found = [t.grad for t in (x, layer.weight, layer.bias)]
        assert [g is None for g in found] == [not t.requires_grad for t in (x, layer.weight, layer.bias)]
        return [y.detach(), *(g for g in found if g is not None), *amaxes]

    assert_same(run(False), run(True))


def test_an_evaluation_keeps_nothing_and_takes_any_number_of_tokens() -> None:
    layer, _ = a_layer()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=False)
    x = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        eager = layer(x)
        assert torch.equal(compiled(x), eager)
        [y] = torch.ops.nvfp4_repro.linear_forward(
            x, layer.weight, None, layer.handle, layer.layout, False, False, False
        )
    assert torch.equal(y, eager)
    with pytest.raises(ValueError, match="tokens"):
        compiled(x)
    with pytest.raises(ValueError, match=r"l takes 32 features, got a tensor of \(32, 16\)"):
        compiled(torch.randn(32, 16))


def test_a_copy_of_a_compiled_layer_is_a_layer_of_its_own() -> None:
    layer, _ = a_layer()
    other = copy.deepcopy(layer)
    other.context.step = 5
    x = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(1))
    for one in (layer, other):
        call = torch.compile(one, backend="aot_eager", fullgraph=True)
        found = [torch.autograd.grad(f(x).square().sum(), one.weight) for f in (one, call)]
        assert torch.equal(found[0][0], found[1][0])
    assert counters["stats"]["unique_graphs"] == 1
    assert not torch.equal(found[0][0], torch.autograd.grad(layer(x).square().sum(), layer.weight)[0])
    assert list(layer.state_dict()) == ["weight"]


def test_an_observer_sees_the_operands_of_a_compiled_model() -> None:
    def run(prepare: Callable[[nn.Module], nn.Module] | None) -> list[Tensor]:
        seen = []
        stack_run(prepare, observer=lambda *given: seen.append(given[4].values))
        return seen

    assert_same(run(None), run(lambda model: torch.compile(model, backend="aot_eager")))


def test_a_stored_program_does_not_call_the_layers_of_another_process() -> None:
    layer, _ = a_layer()
    with pytest.raises(Exception, match="4-bit arithmetic is exact only as it stands"):
        torch.export.export(layer, (torch.randn(32, WIDTH),), strict=True)
    handle, weight = layer.handle, layer.weight.detach()
    del layer
    gc.collect()
    with pytest.raises(RuntimeError, match="quantised layer that is gone"):
        torch.ops.nvfp4_repro.linear_forward(
            torch.randn(32, WIDTH), weight, None, handle, "nvfp4 nvfp4", False, False, False
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", ["12b_nvfp4", "12b_without_2d", "8b_mxfp4", "8b_bf16"])
def test_the_operators_keep_the_rules_of_operators(variant: str, dtype: torch.dtype, pairs: list) -> None:
    layer, _ = a_layer(bias=True, recipe=recipe_of(variant))
    x = torch.randn(2, 16, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    for is_pair in {False, layer.pairs_x(x)}:
        arguments = x, layer.weight, layer.bias, layer.handle, layer.layout, True, True, is_pair
        torch.library.opcheck(torch.ops.nvfp4_repro.linear_forward.default, arguments)


def test_the_operators_stay_out_of_cuda_graphs() -> None:
    from repro.recipes import compiled  # noqa: F401

    tag = getattr(torch.Tag, "cudagraph_unsafe", None)
    for name in ("linear_forward", "linear_backward"):
        operator = getattr(torch.ops.nvfp4_repro, name).default
        assert tag is None or tag in operator.tags, name


@pytest.mark.parametrize("name", ["bf16", "fp8_block", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_pairs", [False, True])
def test_no_tokens_give_a_gradient_of_zeros_in_the_graph_of_some(
    name: str, dtype: torch.dtype, in_pairs: bool, request: pytest.FixtureRequest
) -> None:
    """A graph made for any number of tokens is called with none, as an expert may be."""
    if in_pairs:
        request.getfixturevalue("pairs")
    model = Stack(bias=True)
    apply_recipe(blocks_of(model), load_recipe(RECIPES / f"{name}.yaml"), context=RunContext(1))
    graph = torch.compile(model, backend="aot_eager", fullgraph=True)
    for num_tokens in (32, 0):
        x = torch.ones(2, num_tokens, WIDTH, dtype=dtype, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 1)
        model.zero_grad()
        y = graph(x)
        y.sum().backward()
        assert (y.shape, y.dtype) == (x.shape, dtype)
        assert (x.grad.shape, x.grad.dtype) == (x.shape, dtype)
        for parameter in model.parameters():
            assert parameter.grad.isfinite().all()
            assert bool(parameter.grad.count_nonzero()) == (num_tokens > 0)


def test_any_number_of_tokens_fits_frozen_weights() -> None:
    model = Stack().requires_grad_(False)
    apply_recipe(blocks_of(model), NVFP4, context=RunContext(1))
    x = torch.ones(7, WIDTH, requires_grad=True)
    for call in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        (dx,) = torch.autograd.grad(call(x).sum(), x)
        assert dx.count_nonzero()
