"""``python -m repro.portable RUN_YAML --data DIR --state DIR``: trains one frozen segment, or goes on with it.

Exit code 0: complete (also when the run diverged: that is a result). 1: an error, told in one line. 143: a stop was
asked for (SIGTERM or SIGINT); the segment saved itself and the same command goes on.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

EXIT_STOPPED = 128 + signal.SIGTERM


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m repro.portable", description=__doc__)
    parser.add_argument(
        "run_yaml", type=Path, help="frozen segment; metrics.jsonl and done.json go beside it"
    )
    parser.add_argument("--data", type=Path, required=True, help="prepared data folder")
    parser.add_argument(
        "--state", type=Path, required=True, help="folder of all checkpoints, one folder a run hash"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads (part of what makes numbers repeat)"
    )
    parser.add_argument("--device", default=None, help='"cpu" or "cuda"; default: cuda where there is one')
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)

    stop_asked = False

    def ask_to_stop(number: int, frame: object) -> None:
        nonlocal stop_asked
        stop_asked = True

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)

    import torch

    from repro.portable.frozen import load_frozen
    from repro.portable.trainer import Stopped, Trainer

    torch.set_num_threads(options.threads)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        segment = load_frozen(options.run_yaml)
        trainer = Trainer(segment, data_dir=options.data, state_root=options.state, device=device)
        trainer.run(should_stop=lambda: stop_asked)
    except Stopped as stopped:
        logging.info("%s", stopped)
        return EXIT_STOPPED
    except (ValueError, OSError) as error:
        logging.error("error: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
