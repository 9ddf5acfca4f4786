"""A recipe under PyTorch's data parallelism: two processes train as one does on both micro batches.

Losses may differ by the order in which gradients are added. Stochastic rounding with other bits moves them by fifty
times the tolerance (5e-4, without `follow_training`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from recipe_variants import RECIPES
from torch import nn

from repro.recipes import RunContext, apply_recipe, blocks_of, follow_training, load_recipe

WIDTH, STEPS = 32, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)).square())


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.layers:
            x = block(x)
        return x


def train(wrap: str, rank: int, num_ranks: int) -> list[float]:
    """Mean losses of the steps: each step has two micro batches, of this process or of two."""
    torch.manual_seed(0)
    model = Stack()
    data = torch.randn(STEPS, 2, 64, WIDTH)
    context = RunContext(1)
    apply_recipe(blocks_of(model), load_recipe(RECIPES / "nvfp4.yaml"), context=context)
    if wrap.endswith("of compiled blocks"):
        for block in model.layers:
            block.compile(backend="aot_eager", fullgraph=wrap.startswith("ddp"))
    if wrap.startswith("ddp"):
        model = nn.parallel.DistributedDataParallel(model)
    if wrap.startswith("fsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (num_ranks,))
        for block in model.layers:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    follow_training(context, model, optimizer, rank=rank, num_ranks=num_ranks)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = torch.zeros(())
        for microbatch in range(rank, 2, num_ranks):
            loss = (model(data[step, microbatch]) - 1).square().mean()
            (loss * num_ranks / 2).backward()
            total += loss.detach() / 2
        if num_ranks > 1:
            dist.all_reduce(total)
        optimizer.step()
        losses.append(total.item())
    return losses


def train_as_rank(rank: int, wrap: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        losses = train(wrap, rank, 2)
        (Path(folder) / f"{rank}.json").write_text(json.dumps(losses), encoding="utf-8")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("wrap", ["ddp", "fsdp", "ddp of compiled blocks", "fsdp of compiled blocks"])
def test_two_processes_train_as_one(tmp_path: Path, wrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", here)  # the spawned processes import this file
    mp.spawn(train_as_rank, (wrap, str(tmp_path)), nprocs=2)
    expected = train("", 0, 1)
    for rank in range(2):
        losses = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert losses == pytest.approx(expected, rel=1e-5), f"{wrap}, rank {rank}"
