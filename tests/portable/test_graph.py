"""CUDA graphs: not one bit differs from the eager path; where a capture fails the run goes on without."""

import pytest
import torch
from small_segment import RECIPES, freeze, nvfp4_recipe, operand

from repro.models.fragments import fuse_fragments
from repro.portable import graph
from repro.portable.frozen import load_frozen
from repro.portable.gpu import prepare_process
from repro.portable.graph import SWITCH, Graphs, Replayed
from repro.portable.metrics import comparable
from repro.portable.trainer import Stopped, Trainer
from repro.recipes import RunContext

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU = torch.device("cpu")


def fresh_signs_recipe() -> dict:
    """Stochastic rounding and signs drawn anew for every transform."""
    recipe = nvfp4_recipe()
    rht = {"hadamard": 16, "signs": "per_transform"}
    recipe["wgrad"] = {"x": operand(**rht), "g": operand(rounding="sr", **rht)}
    return recipe


class Made:
    """What a trained segment leaves: metrics, weights, moments, and the calls that were captured."""

    def __init__(self, path, data_dir, state, *, fuse, **options):
        trainer = Trainer(load_frozen(path), data_dir=data_dir, state_root=state, device="cuda:0", fuse=fuse)
        try:
            self.status = trainer.run(**options)
        finally:
            trainer.close()
            stepper = trainer.stepper
            calls = [*stepper._micro_batch._calls.values(), *stepper._validation_loss._calls.values()]
            self.num_captured = sum(call.is_captured for call in calls)
        self.metrics = comparable((path.parent / "metrics.jsonl").read_text())
        self.tensors = {**trainer.model.state_dict(), **trainer.optimizer.state_tensors()}


@pytest.fixture
def gpu_state(monkeypatch):
    monkeypatch.setitem(RECIPES, "fresh_signs", fresh_signs_recipe)
    prepare_process(torch.device("cuda:0"))
    yield
    fuse_fragments(False)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("recipe", ["bf16", "nvfp4", "fresh_signs"])
def test_replayed_steps_equal_eager_ones_to_the_bit(tmp_path, data_dir, gpu_state, monkeypatch, recipe, fuse):
    path = freeze(tmp_path / "run", recipe=recipe)
    monkeypatch.setenv(SWITCH, "1")
    replayed = Made(path, data_dir, tmp_path / "replayed", fuse=fuse)
    monkeypatch.setenv(SWITCH, "0")
    eager = Made(path, data_dir, tmp_path / "eager", fuse=fuse)
    assert (replayed.num_captured > 1, eager.num_captured) == (True, 0), "training and validation"
    for one, other in zip(replayed.metrics, eager.metrics, strict=True):
        assert one == other
    for name, tensor in eager.tensors.items():
        assert torch.equal(replayed.tensors[name], tensor), name


@pytest.mark.gpu
@needs_gpu
def test_a_resumed_run_may_switch_graphs_off(tmp_path, data_dir, gpu_state, monkeypatch):
    whole = freeze(tmp_path / "whole" / "run")
    Made(whole, data_dir, tmp_path / "whole" / "state", fuse=True)
    parts = freeze(tmp_path / "parts" / "run")
    stops = iter([False] * 6 + [True])
    with pytest.raises(Stopped):
        Made(parts, data_dir, tmp_path / "parts" / "state", fuse=True, should_stop=lambda: next(stops, False))
    monkeypatch.setenv(SWITCH, "0")
    second = Made(parts, data_dir, tmp_path / "parts" / "state", fuse=True)
    for one, other in zip(
        comparable((whole.parent / "metrics.jsonl").read_text()), second.metrics, strict=True
    ):
        assert one == other


# Without a GPU: which calls are run, captured and replayed.


class FakeCall:
    """Takes the place of what talks to CUDA."""

    fails = False

    def __init__(self, function, graphs):
        self.function, self.is_captured, self.log = function, False, graphs.log

    def run(self, tokens):
        self.log.append(("run", tuple(tokens.shape)))
        return self.function(tokens)

    def capture(self, tokens):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        self.log.append(("capture", tuple(tokens.shape)))
        self.is_captured = True

    def replay(self, tokens):
        self.log.append(("replay", tuple(tokens.shape)))
        return self.function(tokens)


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.setattr(graph, "_Call", FakeCall)
    found = Graphs(RunContext(1), num_layers=1, device=CPU)
    assert not found.is_on, "a CPU has none"
    found.is_on, found.log = True, []
    return found


def test_each_shape_is_run_once_then_captured_then_replayed(graphs):
    call = Replayed(lambda tokens: [tokens.sum()], graphs)
    one, other = torch.ones(2, 3), torch.ones(1, 3)
    assert [call(tokens)[0].item() for tokens in (one, other, one, one, other)] == [6, 3, 6, 6, 3]
    run, again = ("run", (2, 3)), ("replay", (2, 3))
    assert graphs.log == [
        run, ("run", (1, 3)), ("capture", (2, 3)), again, again, ("capture", (1, 3)), ("replay", (1, 3)),
    ]  # fmt: skip


def test_a_failed_capture_is_told_once_and_the_function_runs_eagerly(graphs, monkeypatch, caplog):
    monkeypatch.setattr(FakeCall, "fails", True)
    call = Replayed(lambda tokens: [tokens.sum()], graphs)
    with caplog.at_level("WARNING", logger="repro.portable"):
        assert [call(torch.ones(2))[0].item() for _ in range(4)] == [2, 2, 2, 2]
    assert [r.getMessage() for r in caplog.records] == [
        "no CUDA graphs, same numbers but slower: a capture failed (operation not permitted when stream is capturing)"
    ]
    assert graphs.log == [("run", (2,))]
