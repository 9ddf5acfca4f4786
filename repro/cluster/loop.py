"""megatron-core's side of a segment: model, batches, losses, what the processes tell each other.

The hybrid model for all three families: megatron-core's HybridModel takes one pattern symbol a layer, and a
transformer is the pattern "*-*-..." with rotary positions. Shapes: B sequences of a micro batch, S tokens; losses are
[B, S], one a token, in FP32.

Written for megatron-core 0.19.2, whose groups and model are reached inside functions. What of this ran where:
docs/records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repro.cluster import precision, quantizers
from repro.cluster.data import FrozenOrder, ValidationShare, sums_by_category
from repro.cluster.emulation import Clock
from repro.cluster.paths import Decision
from repro.portable.frozen import FrozenSegment


class MegatronLoop:
    """Implements repro.cluster.session.Loop, and what `pretrain` is called with."""

    def __init__(self, segment: FrozenSegment, decision: Decision, data_dir: Path) -> None:
        self._segment, self._decision, self._data_dir = segment, decision, data_dir
        self._clock: Clock | None = None
        self._share: ValidationShare | None = None
        self.waited_seconds = 0.0

    # what pretrain is called with

    def datasets(self, num_samples: Any, vp_stage: int | None = None) -> tuple[Any, None, None]:
        """(training samples, None, None): validation is the session's, there is no test set."""
        return (FrozenOrder(self._segment, self._data_dir) if _reads_data() else None), None, None

    # Every process makes its own; otherwise megatron-core would ask one process of a group alone.
    datasets.is_distributed = True  # type: ignore[attr-defined]

    def forward_step(self, data_iterator: Iterator[dict[str, Tensor]], model: Any) -> tuple[Tensor, Any]:
        """One micro batch: the model's losses [B, S] and the function that sums them."""
        from megatron.training import get_args

        self._begin(get_args().curr_iteration, training=True)
        started = time.perf_counter()
        samples = _next_samples(data_iterator)
        self.waited_seconds += time.perf_counter() - started
        batch = _on_gpu(samples)
        return _run(model, batch), partial(_training_loss, batch.get("loss_mask"))

    # what a session asks

    def sum(self, number: int) -> int:
        total = torch.tensor([number], dtype=torch.int64, device="cuda")
        torch.distributed.all_reduce(total)
        return int(total)

    def tell(self, flag: bool) -> bool:
        told = torch.tensor([int(flag)], dtype=torch.int32, device="cuda")
        torch.distributed.broadcast(told, src=torch.distributed.get_world_size() - 1)
        return bool(told)

    def precision_before(self, model: list[Any]) -> list[Any]:
        from megatron.core import mpu

        if self._decision.path == "emulated":
            self._clock = Clock(
                self._segment.content["seed"],
                replica=mpu.get_data_parallel_rank(),
                replicas=mpu.get_data_parallel_world_size(),
            )
            quantizers.use(self._segment.recipe, self._clock)
        chunk = _unwrapped(model)
        precision.check_storage(chunk.named_parameters())
        precision.check_others(self._segment.model, chunk.decoder.layers, chunk.named_modules())
        own = precision.read_before(self._segment.model, chunk.decoder.layers, _layer_context(chunk.config))
        return self._verified(own)

    def precision_after(self, model: list[Any]) -> list[Any]:
        return self._verified(precision.read_after(self._segment.model, _unwrapped(model).decoder.layers))

    def nonfinite(self) -> int:
        """Counted by the emulated path; natively the loss and the gradient norm must tell."""
        return self._clock.context.nonfinite if self._clock else 0

    def peak_memory_bytes(self) -> int:
        return torch.cuda.max_memory_allocated()

    @torch.no_grad()
    def validate(self, model: list[Any], config: Any, step: int) -> dict[str, tuple[float, float]]:
        from megatron.core import mpu
        from megatron.core.pipeline_parallel import get_forward_backward_func

        rows, length = (
            self._segment.schedule[key] for key in ("micro_batch_sequences", "sequence_length_tokens")
        )
        if self._share is None:
            replica, replicas = mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()
            self._share = ValidationShare.of(
                self._segment, self._data_dir, replica=replica, replicas=replicas, rows=rows
            )
        share, timers = self._share, config.timers
        config.timers = None
        for chunk in model:
            chunk.eval()
        self._begin(step, training=False)
        results = get_forward_backward_func()(
            forward_step_func=partial(_validation_step, num_categories=len(share.categories)),
            data_iterator=share.batches(rows) if _reads_data() else None,
            model=model,
            num_microbatches=share.num_sequences // rows,
            seq_length=length,
            micro_batch_size=rows,
            decoder_seq_length=None,
            forward_only=True,
        )
        for chunk in model:
            chunk.train()
        config.timers = timers
        if not mpu.is_pipeline_last_stage():
            return {}
        sums = torch.stack([result["by category"] for result in results]).sum(0)
        torch.distributed.all_reduce(sums, group=mpu.get_data_parallel_group())
        return {
            name: (float(loss), float(num)) for name, (loss, num) in zip(share.categories, sums, strict=True)
        }

    def num_parameters(self, model: list[Any]) -> int:
        """Of the whole model: split ones count on every GPU of a tensor group, the others once."""
        from megatron.core import mpu

        split = mpu.get_tensor_model_parallel_world_size()
        own = sum(
            parameter.numel() * (split if getattr(parameter, "tensor_model_parallel", False) else 1)
            for chunk in model
            for parameter in chunk.parameters()
        )
        return sum(_gather_stages(own))

    def _begin(self, step: int, *, training: bool) -> None:
        if self._clock is not None:
            self._clock.begin(step, training=training)

    def _verified(self, own: list[Any]) -> list[Any]:
        record = [line for stage in _gather_stages(own) for line in stage]
        precision.compare(record, self._segment.recipe, self._segment.model)
        return record


def _reads_data() -> bool:
    """The first stage needs tokens, the last one labels."""
    from megatron.core import mpu

    return mpu.is_pipeline_first_stage() or mpu.is_pipeline_last_stage()


def _next_samples(data_iterator: Iterator[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A micro batch as the loader gives it; empty in the middle of a pipeline."""
    return next(data_iterator) if _reads_data() else {}


def _on_gpu(samples: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.cuda(non_blocking=True) for key, value in samples.items()}


def _run(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return model(
        batch.get("tokens"),
        batch.get("position_ids"),
        None,  # no mask: attention is causal
        labels=batch.get("labels"),
        loss_mask=batch.get("loss_mask"),
    )


def _training_loss(loss_mask: Tensor, losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(sum of losses, number of tokens, report): megatron-core divides, over micro batches and replicas."""
    loss = (losses.float() * loss_mask).sum()
    num_tokens = loss_mask.sum().to(torch.int)
    return loss, num_tokens, {"lm loss": torch.stack([loss.detach(), num_tokens.float()])}


def _validation_step(
    data_iterator: Iterator[dict[str, Tensor]], model: Any, *, num_categories: int
) -> tuple[Tensor, Any]:
    batch = _on_gpu(_next_samples(data_iterator))
    categories, loss_mask = batch.pop("categories", None), batch.get("loss_mask")

    def loss(losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        sums = sums_by_category(losses.float(), loss_mask, categories, num_categories)
        return sums[:, 0].sum(), loss_mask.sum().to(torch.int), {"by category": sums}

    return _run(model, batch), loss


def _unwrapped(model: list[Any]) -> Any:
    """The one model chunk of this pipeline stage."""
    from megatron.core.utils import unwrap_model

    (chunk,) = unwrap_model(model)
    return chunk


def _gather_stages(own: Any) -> list[Any]:
    """One object of each pipeline stage, in order."""
    from megatron.core import mpu

    group = mpu.get_pipeline_model_parallel_group()
    gathered = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(gathered, own, group=group)
    return gathered


def _layer_context(config: Any) -> precision.Context:
    """The context that megatron-core's HybridStack enters around layer `index` (from 0, over all stages)."""
    from megatron.core.fp4_utils import get_fp4_context
    from megatron.core.fp8_utils import get_fp8_context

    def context(index: int) -> AbstractContextManager[Any]:
        if config.fp8:
            return get_fp8_context(config, index)
        return get_fp4_context(config, index) if config.fp4 else nullcontext()

    return context
