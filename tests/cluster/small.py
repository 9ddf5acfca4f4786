"""Small frozen segments with their data, and a stand-in for megatron-core's training module.

`TRAINING` is the order in which megatron.training.training 0.19.2 calls its own functions by name, with parameters of
the same names; each does what matters to a session: a loss, a checkpoint folder, an exit.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

from repro.cluster.frozen import load_segment

_SPEC = importlib.util.spec_from_file_location(
    "small_segment", Path(__file__).parents[1] / "portable" / "small_segment.py"
)
portable = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(portable)

STEP_TOKENS = portable.STEP_TOKENS


def freeze(folder, **changes):
    """A frozen segment of 20 steps for the cluster backend; see tests/portable/small_segment.py."""
    return load_segment(portable.freeze(folder, **{"backend": "cluster", "family": "12b", **changes}))


TRAINING = """
import sys

def train_step(forward_step_func, data_iterator, model, optimizer, opt_param_scheduler, config,
               forward_backward_func, iteration=None):
    world.calls.append(("step", iteration))
    return {"lm loss": world.loss(iteration)}, 0, False, False, 0, world.grad_norm(iteration), 0, 0

def training_log(loss_dict, total_loss_dict, learning_rate, iteration, loss_scale, report_memory_flag, skipped_iter,
                 grad_norm, params_norm, num_zeros_in_grad, max_attention_logit, pg_collection=None):
    return False

def save_checkpoint_and_time(iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far,
                             checkpointing_context, non_persistent_ckpt=False, train_data_iterator=None):
    world.save(iteration)

def evaluate_and_print_results(prefix, forward_step_func, data_iterator, model, iteration,
                               process_non_loss_data_func, config, verbose=False, write_to_tensorboard=True):
    raise AssertionError("megatron's own validation must not run")

def checkpoint_and_decide_exit(model, optimizer, opt_param_scheduler, iteration,
                               num_floating_point_operations_so_far, checkpointing_context, train_data_iterator):
    if iteration == world.signal_at:
        save_checkpoint_and_time(iteration, model, optimizer, opt_param_scheduler, 0, checkpointing_context,
                                 train_data_iterator=train_data_iterator)
        return True
    if iteration % world.save_interval == 0:
        save_checkpoint_and_time(iteration, model, optimizer, opt_param_scheduler, 0, checkpointing_context,
                                 train_data_iterator=train_data_iterator)
    return False

def train(forward_step_func, model, optimizer, opt_param_scheduler, train_data_iterator, valid_data_iterator,
          process_non_loss_data_func, config, checkpointing_context, non_loss_data_func):
    iteration, should_exit = world.start, False
    while iteration < world.train_iters:
        loss, *_, grad_norm, _, _ = train_step(forward_step_func, train_data_iterator, model, optimizer,
                                               opt_param_scheduler, config, None, iteration=iteration)
        iteration += 1
        training_log(loss, {}, 1e9, iteration, 1.0, False, 0, grad_norm, None, 0, 0, pg_collection=None)
        if iteration % world.eval_interval == 0:
            evaluate_and_print_results("", forward_step_func, None, model, iteration, None, config, verbose=False)
        should_exit = checkpoint_and_decide_exit(model, optimizer, opt_param_scheduler, iteration, 0, {}, None)
        if should_exit:
            break
    if should_exit:
        sys.exit(0)
    return iteration, 0

def pretrain(cfg_container, train_valid_test_dataset_provider, model_type, forward_step_func):
    from megatron.core.datasets.utils import compile_helpers
    compile_helpers()
    optimizer = world.optimizer
    iteration, _ = train(forward_step_func, world.model, optimizer, None, None, None, None, world.config, {}, None)
    if iteration != 0 and iteration % world.save_interval != 0:
        save_checkpoint_and_time(iteration, world.model, optimizer, None, 0, {}, train_data_iterator=None)
    evaluate_and_print_results("", forward_step_func, None, world.model, iteration, None, world.config, verbose=True)
"""


class World(SimpleNamespace):
    """What the stand-in does: losses by step, where it starts, which folders it writes."""

    def __init__(self, segment, state_dir, *, start=0, loss=lambda step: 4.0 - 0.01 * step, signal_at=None):
        super().__init__(start=start, loss=loss, signal_at=signal_at, calls=[], state_dir=state_dir)
        self.grad_norm = lambda step: 1.0
        self.train_iters = segment.end_step
        content = segment.content
        self.save_interval = content["checkpoints"]["every_tokens"] // segment.step_tokens
        self.eval_interval = content["validation"]["every_tokens"] // segment.step_tokens
        self.optimizer = SimpleNamespace(param_groups=[{"lr": 0.5}])
        self.model, self.config = ["chunk"], SimpleNamespace()

    def save(self, step):
        self.calls.append(("save", step))
        folder = self.state_dir / f"iter_{step:07d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__0_0.distcp").write_bytes(b"tensors")


def training_module(world):
    module = ModuleType("megatron.training.training")
    exec(compile(TRAINING, "training.py", "exec"), module.__dict__)
    module.world = world
    return module


class FakeLoop:
    """Implements repro.cluster.session.Loop for one process without a GPU."""

    def __init__(self):
        self.calls, self.bad_after, self.waited_seconds = [], False, 0.0
        self.datasets = self.forward_step = None

    def sum(self, number):
        return number

    def tell(self, flag):
        return flag

    def nonfinite(self):
        return 0

    def peak_memory_bytes(self):
        return 1000

    def precision_before(self, model):
        self.calls.append("before")
        return ["asked for"]

    def precision_after(self, model):
        self.calls.append("after")
        if self.bad_after:
            raise ValueError("layer model.layers.0.mixer.in_proj runs fprop.x with format bf16")
        return ["ran"]

    def validate(self, model, config, step):
        self.calls.append(("validate", step))
        return {"code": (30.0, 10.0), "prose": (20.0, 10.0)}

    def num_parameters(self, model):
        return 123


def _no_makefile():
    """What start-up does with the wheel of 0.19.2, which brings no makefile for its C++ helpers."""
    sys.exit(1)


def fake_megatron(monkeypatch, training):
    """Puts the stand-in where repro.cluster.job imports megatron-core from."""
    dataset_utils = SimpleNamespace(compile_helpers=_no_makefile)
    modules = {
        "megatron": ModuleType("megatron"),
        "megatron.core": ModuleType("megatron.core"),
        "megatron.core.datasets": SimpleNamespace(utils=dataset_utils),
        "megatron.core.datasets.utils": dataset_utils,
        "megatron.core.enums": SimpleNamespace(ModelType=SimpleNamespace(encoder_or_decoder="decoder")),
        "megatron.training": SimpleNamespace(training=training),
        "megatron.training.training": training,
        "megatron.training.argument_utils": SimpleNamespace(
            hybrid_config_from_args=lambda parsed: None,
            pretrain_cfg_container_from_args=lambda parsed, model: None,
        ),
        "megatron.training.arguments": SimpleNamespace(
            parse_and_validate_args=lambda args_defaults: training.world.calls.append(("argv", sys.argv[1:]))
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
