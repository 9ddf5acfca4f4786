"""megatron-core's side with stand-ins for its groups and schedule: batches, losses, validation, records of stages."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from small import freeze, portable

from repro.cluster import loop as loop_module
from repro.cluster.loop import MegatronLoop
from repro.cluster.paths import decide
from repro.data.training_data import ValidationData


class Toy(torch.nn.Module):
    """Loses, at each token, the number of the label: sums are then known."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 5))
        self.split = torch.nn.Parameter(torch.ones(7))
        self.split.tensor_model_parallel = True
        self.modes = []

    def forward(self, tokens, position_ids, attention_mask, labels=None, loss_mask=None):
        assert attention_mask is None
        assert tokens.shape == position_ids.shape == labels.shape == loss_mask.shape
        self.modes.append(self.training)
        return labels.float() * self.weight.mean()


def schedule(*, forward_step_func, data_iterator, model, num_microbatches, forward_only, **rest):
    """megatron-core's forward-only schedule without a pipeline."""
    assert forward_only
    results = []
    for _ in range(num_microbatches):
        output, loss_func = forward_step_func(data_iterator, model[0])
        loss, num_tokens, report = loss_func(output)
        loss /= torch.clamp(num_tokens, min=1)
        results.append(report)
    with pytest.raises(StopIteration):
        next(data_iterator)
    return results


@pytest.fixture
def megatron(monkeypatch):
    """One process of one: replaces what MegatronLoop imports; returns the groups to change."""
    mpu = SimpleNamespace(
        is_pipeline_first_stage=lambda: True,
        is_pipeline_last_stage=lambda: True,
        get_data_parallel_rank=lambda: 0,
        get_data_parallel_world_size=lambda: 1,
        get_data_parallel_group=lambda: None,
        get_pipeline_model_parallel_group=lambda: None,
        get_tensor_model_parallel_world_size=lambda: 2,
    )
    state = SimpleNamespace(curr_iteration=3)
    modules = {
        "megatron": SimpleNamespace(),
        "megatron.core": SimpleNamespace(mpu=mpu),
        "megatron.core.pipeline_parallel": SimpleNamespace(get_forward_backward_func=lambda: schedule),
        "megatron.core.utils": SimpleNamespace(unwrap_model=lambda model: model),
        "megatron.core.fp4_utils": SimpleNamespace(
            get_fp4_context=lambda config, index: nullcontext(("fp4", index))
        ),
        "megatron.core.fp8_utils": SimpleNamespace(
            get_fp8_context=lambda config, index: nullcontext(("fp8", index))
        ),
        "megatron.training": SimpleNamespace(get_args=lambda: state),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, non_blocking=False: self)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, group=None: None)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 1)

    def gather(out, own, group=None):
        out[0] = own

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    return mpu


@pytest.fixture
def data_dir(tmp_path):
    return portable.write_data(tmp_path / "data")


@pytest.fixture
def loop(tmp_path, data_dir, megatron):
    segment = freeze(tmp_path / "run")
    return MegatronLoop(segment, decide(segment.recipe, emulate=True), data_dir)


def test_the_loss_of_a_micro_batch_is_its_sum_and_its_number_of_tokens(loop):
    train, valid, test = loop.datasets((80, 1, 1))
    assert valid is None
    assert test is None
    batch = torch.utils.data.default_collate([train[0], train[1]])
    losses, loss_func = loop.forward_step(iter([batch]), Toy())
    loss, num_tokens, report = loss_func(losses)
    assert loss == batch["labels"].sum()
    assert num_tokens == batch["labels"].numel()
    assert not num_tokens.is_floating_point(), "megatron-core divides by a clamped integer"
    assert report["lm loss"].tolist() == [loss.item(), float(num_tokens)]


def test_the_wait_is_the_loaders_of_training_alone(loop, monkeypatch):
    """Not what the model takes, nor what a validation reads."""
    clock, train = SimpleNamespace(now=0.0), loop.datasets((80, 1, 1))[0]
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    class SlowToy(Toy):
        def forward(self, *given, **more):
            clock.now += 5.0
            return super().forward(*given, **more)

    def slow(batches):
        for batch in batches:
            clock.now += 2.0
            yield batch

    batches = slow(torch.utils.data.default_collate([train[number]]) for number in range(2))
    loop.forward_step(batches, SlowToy())
    assert loop.waited_seconds == 2.0
    loop.forward_step(batches, SlowToy())
    assert loop.waited_seconds == 4.0
    share = loop_module.ValidationShare
    monkeypatch.setattr(share, "batches", lambda self, rows, read=share.batches: slow(read(self, rows)))
    loop.validate([SlowToy()], SimpleNamespace(timers=None), 5)
    rows = loop._segment.schedule["micro_batch_sequences"]
    assert clock.now == 7.0 * (2 + loop._share.num_sequences // rows), "the validation read as slowly"
    assert loop.waited_seconds == 4.0


def test_every_process_makes_its_own_loader(loop):
    assert loop.datasets.is_distributed


def test_the_middle_of_a_pipeline_reads_no_data(loop, megatron):
    megatron.is_pipeline_first_stage = megatron.is_pipeline_last_stage = lambda: False
    assert loop.datasets((80, 1, 1)) == (None, None, None)
    assert loop_module._next_samples(None) == {}


def test_validation_sums_by_category_and_leaves_the_model_in_training(loop, data_dir):
    segment, model, config = loop._segment, Toy(), SimpleNamespace(timers="timers")
    sums = loop.validate([model], config, 5)
    data = ValidationData(data_dir, segment.content["data"], segment.schedule, segment.content["validation"])
    expected = {}
    for name, tokens in data.batches(1):
        loss, count = expected.get(name, (0.0, 0.0))
        expected[name] = (loss + float(tokens[:, 1:].sum()), count + tokens.shape[1] - 1.0)
    assert sums == expected
    assert set(model.modes) == {False}
    assert model.training
    assert config.timers == "timers"


def test_validation_is_known_in_the_last_stage_alone(loop, megatron):
    megatron.is_pipeline_last_stage = lambda: False
    assert loop.validate([Toy()], SimpleNamespace(timers=None), 5) == {}


def test_split_parameters_count_on_every_gpu_of_a_tensor_group(loop):
    assert loop.num_parameters([Toy()]) == 15 + 2 * 7


@pytest.mark.parametrize(
    ("config", "entered"),
    [
        ({"fp4": "e2m1", "fp8": None}, ("fp4", 4)),
        ({"fp4": None, "fp8": "e4m3"}, ("fp8", 4)),
        ({"fp4": None, "fp8": None}, None),
    ],
)
def test_a_layer_is_asked_inside_the_context_that_megatron_enters(megatron, config, entered):
    with loop_module._layer_context(SimpleNamespace(**config))(4) as context:
        assert context == entered


def test_the_walk_joins_the_stages_and_compares_the_whole_model(loop, megatron, monkeypatch):
    import fake_te

    from repro.cluster import quantizers
    from repro.cluster.emulation import OperandMaker

    segment = loop._segment

    def make(name):
        recipe, clock = quantizers._in_use
        assert recipe == segment.recipe
        return {
            kind: fake_te.EmulatedQuantizer(OperandMaker(recipe, kind, layer=name, clock=clock))
            for kind in ("input", "weight", "grad_output")
        }

    model = fake_te.Model(segment.model, make, last=segment.recipe.bf16_blocks.last)
    monkeypatch.setattr(loop_module, "_layer_context", lambda config: model.context)
    head = SimpleNamespace(dtype=torch.bfloat16, main_grad=torch.zeros(1))
    modules = [("output_layer", torch.nn.Linear(2, 2))]
    chunk = SimpleNamespace(
        decoder=SimpleNamespace(layers=model.layers),
        config=None,
        named_parameters=lambda: [("head", head)],
        named_modules=lambda: modules,
    )
    before = loop.precision_before([chunk])
    assert before == loop.precision_after([chunk])
    modules.append(("mtp.eh_proj", fake_te.WeightedLinear(2, 2)))
    with pytest.raises(ValueError, match=r"mtp\.eh_proj is a layer of Transformer Engine"):
        loop.precision_before([chunk])
    head.dtype = torch.float32
    with pytest.raises(ValueError, match="head is kept in float32"):
        loop.precision_before([chunk])
    model.layers[0].get_submodule("mixer.in_proj").fp8 = False
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mixer\.in_proj"):
        loop.precision_after([chunk])
    assert loop.nonfinite() == 0
