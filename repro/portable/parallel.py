"""The processes of one training run: who is first, what they tell each other, what happens when one dies.

Data parallel: every process holds the whole model and takes its share of each step's micro batches. They are started
together (torchrun, or srun) and find each other through RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
Without these there is one process and everything here does nothing.

Small messages (flags, losses, positions) go through gloo on the CPU; gradients and weights through NCCL between GPUs
and through gloo between CPUs. A third, silent group is only listened to: a process that dies closes its connections,
and the others end within a second instead of waiting in a collective for its time limit.

Does not: start processes, choose a port, split one model over several devices.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor

from repro.options import whole

log = logging.getLogger("repro.portable")

Found = TypeVar("Found")

# A machine that vanishes without closing its connections is noticed after this; longer than any checkpoint takes.
_SILENCE = timedelta(minutes=10)
_FOR_EVER = timedelta(days=365)
_NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_LAST_PORT = 65535


class ProcessLost(RuntimeError):  # noqa: N818 - what happened, in the words of the log
    """Another process of the run ended or fell silent; this one cannot go on."""


def launched_as(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """(rank, number of processes) that the launcher gave this one; (0, 1) when WORLD_SIZE is not set or 1.

    Raises ValueError naming a variable that is not set or that nobody could be met with: the other processes would
    wait for one that never comes.
    """
    size = variable("WORLD_SIZE", environment, default=1, least=1)
    if size == 1:
        return 0, 1
    if missing := [name for name in _NEEDED if name not in environment]:
        raise ValueError(
            f"WORLD_SIZE is {size}, but {', '.join(missing)} is not set: torchrun or srun start all processes"
        )
    variable("MASTER_PORT", environment, least=1, most=_LAST_PORT)
    variable("LOCAL_RANK", environment)
    rank = variable("RANK", environment)
    if rank >= size:
        raise ValueError(f"RANK is {rank}, but must be below WORLD_SIZE, which is {size}: ranks count from 0")
    return rank, size


def variable(
    name: str,
    environment: Mapping[str, str] = os.environ,
    *,
    default: int = 0,
    least: int = 0,
    most: int | None = None,
) -> int:
    """A whole number that the launcher set. Raises ValueError naming it when it is none, or out of bounds."""
    words = environment.get(name, str(default)).strip()
    try:
        return whole(words, least, most)
    except ValueError as bounds:
        raise ValueError(f"{name} is {words!r}, but must be {bounds}; torchrun or srun set it") from None


class Ranks:
    """This process among those of its run.

    Attributes:
        rank: 0 .. size - 1; process 0 writes files and speaks to people.
        size: number of processes.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self._talk: Any = None
        self._watch: Any = None
        self._listeners: list[threading.Thread] = []

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @classmethod
    def join(cls, device_type: str, *, environment: Mapping[str, str] = os.environ) -> Ranks:
        """Meets the other processes that the launcher started; alone when WORLD_SIZE is not set or 1.

        device_type: "cpu" (gloo) or "cuda" (NCCL for the large tensors, on the current GPU). Raises ValueError as
        `launched_as` does, ProcessLost when the others do not come.
        """
        ranks = cls(*launched_as(environment))
        if ranks.size > 1:
            ranks._connect(device_type)
        return ranks

    def _connect(self, device_type: str) -> None:
        import torch.distributed as dist

        with _explained(self):
            if device_type == "cuda":
                device = torch.device("cuda", torch.cuda.current_device())
                dist.init_process_group("nccl", timeout=_SILENCE, device_id=device)
                self._talk = dist.new_group(backend="gloo", timeout=_SILENCE)
            else:
                dist.init_process_group("gloo", timeout=_SILENCE)
                self._talk = dist.group.WORLD
            self._watch = dist.new_group(backend="gloo", timeout=_FOR_EVER)
            self.wait()
        self._listeners = [
            threading.Thread(target=self._listen, args=(peer,), daemon=True) for peer in self._watched()
        ]
        for listener in self._listeners:
            listener.start()

    # death of another process

    def _watched(self) -> Iterable[int]:
        """Process 0 listens to all others, they listen to it: the death of any reaches everybody in two steps."""
        return range(1, self.size) if self.is_first else (0,)

    def _listen(self, peer: int) -> None:
        import torch.distributed as dist

        try:
            dist.recv(torch.zeros(1), src=peer, group=self._watch)
        except RuntimeError:
            log.error(
                "error: process %d of %d ended early (its own message says why, unless it was killed); process %d "
                "ends too. The same command goes on from the last checkpoint",
                peer,
                self.size,
                self.rank,
            )
            logging.shutdown()
            os._exit(1)  # the main thread may be waiting in a collective that never ends

    def leave(self) -> None:
        """Says good-bye and waits for the others' at an orderly end; without it they take this process for dead."""
        if self.size == 1:
            return
        import torch.distributed as dist

        with _explained(self):
            for peer in self._watched():
                dist.send(torch.zeros(1), dst=peer, group=self._watch)
        for listener in self._listeners:
            listener.join()
        dist.destroy_process_group()

    # small messages

    def wait(self) -> None:
        """Returns when every process has come here."""
        self.any(False)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in any process; the same answer everywhere."""
        return any(values[0] for values in self.gather([float(flag)]))

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The `values` of every process, by rank; equally many everywhere."""
        if self.size == 1:
            return [list(values)]
        own = torch.tensor(values, dtype=torch.float64)
        found = torch.empty(self.size * len(values), dtype=torch.float64)
        with _explained(self):
            _gather_into(found, own, group=self._talk)
        return found.view(self.size, -1).tolist()

    def from_first(self, find: Callable[[], Found]) -> Found:
        """What `find` returns in process 0, where alone it is called (it may read and write files)."""
        if self.size == 1:
            return find()
        import torch.distributed as dist

        answer = [find() if self.is_first else None]
        with _explained(self):
            dist.broadcast_object_list(answer, src=0, group=self._talk)
        return answer[0]  # type: ignore[return-value]

    # large tensors

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Overwrites the tensors with those of process 0."""
        if self.size == 1:
            return
        import torch.distributed as dist

        with _explained(self), torch.no_grad():
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def exchange(self, received: Tensor, sent: Tensor) -> None:
        """Part r of `sent` [size * part] goes to process r; `received` [size * part] has theirs by rank."""
        import torch.distributed as dist

        with _explained(self):
            dist.all_to_all_single(received, sent)

    def collect(self, whole: Tensor, part: Tensor) -> None:
        """`whole` [size * part] becomes the `part` of every process, by rank."""
        with _explained(self):
            _gather_into(whole, part)


def _gather_into(whole: Tensor, part: Tensor, **group: Any) -> None:
    """Torch's all-gather under its newer name where there is one: the older one warns."""
    import torch.distributed as dist

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(whole, part, **group)


class _explained:  # noqa: N801 - reads as a statement
    """Turns an error of the collective library into ProcessLost; the library's own text stays as its cause."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, ProcessLost):
            reason = str(error).strip().splitlines()[0]
            raise ProcessLost(
                f"process {self._ranks.rank} of {self._ranks.size} lost the others ({reason}); the same command goes "
                "on from the last checkpoint"
            ) from error
