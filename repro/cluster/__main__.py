"""``python -m repro.cluster RUN_YAML --data DIR --state DIR``: trains one frozen segment, one process a GPU.

``python -m repro.cluster explain RUN_YAML`` prints which path the precision takes and why, and the whole command; it
needs no GPU, no megatron-core and no Transformer Engine. REPRO_CLUSTER_LAYOUT and REPRO_CLUSTER_EMULATE=1 stand for
--layout and --emulate: that is how the workflow's jobs get them, from slurm/site.yaml or the shell. Where neither is
set, `explain` reads the site's file itself.

Exit code 0: complete (also when the run diverged: that is a result). 1: an error, told in one line. 143: a stop was
asked for (SIGTERM); the segment saved itself and the same command goes on.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from repro.cluster.layout import DEFAULT_LAYOUT
from repro.cluster.site import EMULATE_VARIABLE, LAYOUT_VARIABLE, emulation_here, from_shell, layout_here
from repro.options import OneLineParser, whole_number


def main(arguments: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    explains = words[:1] == ["explain"]
    options = _parser(explains).parse_args(words[1:] if explains else words)
    try:
        return _explain(options) if explains else _train(options)
    except (ValueError, OSError) as error:
        _start_log(logging.WARNING)
        logging.error("error: %s", error)
        return 1


def _explain(options: argparse.Namespace) -> int:
    from repro.cluster.command import explain
    from repro.cluster.frozen import load_segment

    segment = load_segment(options.run_yaml)
    layout, said_by = layout_here(options.layout)
    text = explain(segment, layout, emulate=emulation_here(options.emulate))
    print(f"# layout {layout.name} as said by {said_by}\n{text}", end="")
    return 0


def _train(options: argparse.Namespace) -> int:
    from repro.cluster.frozen import load_segment
    from repro.cluster.job import Job, place

    rank, size = place()
    _start_log(logging.INFO if rank == size - 1 else logging.WARNING)  # the last process records
    emulate = emulation_here(options.emulate, from_shell)
    segment = load_segment(options.run_yaml)
    layout, _ = layout_here(options.layout, from_shell)
    choices = {"emulate": emulate, "threads": options.threads}
    return Job(segment, layout, options.data, options.state, **choices).run()


def _start_log(level: int) -> None:
    """The first call counts."""
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)


def _parser(explains: bool) -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m repro.cluster" + (" explain" if explains else ""), description=__doc__
    )
    parser.add_argument(
        "run_yaml", type=Path, help="frozen segment; metrics.jsonl and done.json go beside it"
    )
    if not explains:
        parser.add_argument("--data", type=Path, required=True, help="prepared data folder")
        parser.add_argument(
            "--state", type=Path, required=True, help="folder of all checkpoints, one folder a run hash"
        )
        parser.add_argument(
            "--threads", type=whole_number(), default=1, help="CPU threads of a node, shared out to its GPUs"
        )
    parser.add_argument(
        "--layout",
        help=f"a file of configs/cluster; default: ${LAYOUT_VARIABLE}, else {_otherwise(explains, DEFAULT_LAYOUT)}",
    )
    parser.add_argument(
        "--emulate",
        action=argparse.BooleanOptionalAction,
        help="compute 4-bit operands in software: exact, on any card, slower; "
        f"default: ${EMULATE_VARIABLE}, else {_otherwise(explains, 'no')}",
    )
    return parser


def _otherwise(explains: bool, default: str) -> str:
    return "the site's (slurm/site.yaml)" if explains else default


if __name__ == "__main__":
    sys.exit(main())
