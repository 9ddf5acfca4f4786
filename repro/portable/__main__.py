"""``python -m repro.portable RUN_YAML --data DIR --state DIR``: trains one frozen segment, or goes on with it.

Exit code 0: complete (also when the run diverged: that is a result). 1: an error, told in one line; with several
processes also the death of another one. 2: a wrong option or variable of the launcher, told before anything is done.
143: a stop was asked for (SIGTERM or SIGINT, in any process); the segment saved itself and the same command goes on.
143 or 130: SIGTERM or SIGINT came before all processes were there; nothing is saved.

Several processes (one a GPU; on CPUs too) are started by torchrun or srun, which set RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and MASTER_PORT: `torchrun --nproc-per-node 2 -m repro.portable RUN_YAML ...`. The numbers stay the same.

On a GPU steps are replayed from CUDA graphs; REPRO_CUDA_GRAPHS=0 launches every kernel anew instead, with the same
numbers, to look for a fault.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from repro.options import OneLineParser, whole_number
from repro.portable.stop import StopRequests

if TYPE_CHECKING:
    from repro.portable.parallel import Ranks

EXIT_WRONG_INPUT = 2
EXIT_STOPPED = 128 + signal.SIGTERM
#: Of CPU threads; PyTorch takes any number and breaks when it starts them.
_MOST_THREADS = 1024


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = OneLineParser(prog="python -m repro.portable", description=__doc__, lead="error")
    parser.add_argument(
        "run_yaml", type=Path, help="frozen segment; metrics.jsonl and done.json go beside it"
    )
    parser.add_argument("--data", type=Path, required=True, help="prepared data folder")
    parser.add_argument(
        "--state", type=Path, required=True, help="folder of all checkpoints, one folder a run hash"
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1, _MOST_THREADS),
        default=1,
        help="CPU threads (part of what makes numbers repeat)",
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: cuda where there is one")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="on a GPU, compile the pointwise stretches between the products (minutes once, then cached)",
    )
    parser.add_argument(
        "--emulate-fp8",
        action="store_true",
        help="on a GPU, exact FP8 products instead of the card's own (slower; done.json says which ran)",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)

    stop = StopRequests()

    # Must stand before CUDA starts: cuBLAS then adds in the same order in every process (it ignores this on a CPU).
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    import torch

    from repro.portable.frozen import load_frozen
    from repro.portable.gpu import device_of, prepare_process
    from repro.portable.parallel import ProcessLost, Ranks, launched_as
    from repro.portable.trainer import Stopped, Trainer

    try:
        launched_as()
        device = torch.device(device_of(options.device))
    except ValueError as error:
        logging.error("error: %s", error)
        return EXIT_WRONG_INPUT
    torch.set_num_threads(options.threads)
    code, ranks = 0, None
    try:
        segment = load_frozen(options.run_yaml)
        if on_gpu := device.type == "cuda":
            prepare_process(device)
        ranks = Ranks.join(device.type)
        stop.start_saving()
        if not ranks.is_first:
            logging.getLogger("repro.portable").setLevel(logging.ERROR)
        trainer = Trainer(
            segment,
            data_dir=options.data,
            state_root=options.state,
            device=str(device),
            ranks=ranks,
            fuse=on_gpu and options.compile,
            emulate_fp8=options.emulate_fp8,
        )
        trainer.run(should_stop=lambda: stop.is_asked)
    except Stopped as stopped:
        logging.getLogger("repro.portable").info("%s", stopped)
        code = EXIT_STOPPED
    except (ValueError, OSError, ProcessLost) as error:
        logging.error("error: %s", error)
        code = 1
    except Exception:
        if ranks is None or ranks.size == 1:
            raise
        logging.exception("error in process %d of %d", ranks.rank, ranks.size)
        code = 1
    return _end(code, ranks)


def _end(code: int, ranks: Ranks | None) -> int:
    """Leaves the other processes properly; after an error at once, as tidying up would wait for them.

    One of several processes ends without Python's tidying up: threads that PyTorch's process groups leave behind
    abort about one clean end in ten (exit code 134).
    """
    if ranks is None or ranks.size == 1:
        return code
    if code in (0, EXIT_STOPPED):
        ranks.leave()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
