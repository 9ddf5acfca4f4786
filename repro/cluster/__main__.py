"""``python -m repro.cluster RUN_YAML --data DIR --state DIR``: trains one frozen segment, one process a GPU.

``python -m repro.cluster explain RUN_YAML`` prints which path the precision takes and why, and the whole command; it
needs no GPU, no megatron-core and no Transformer Engine. REPRO_CLUSTER_LAYOUT and REPRO_CLUSTER_EMULATE=1 stand for
--layout and --emulate: that is how the workflow's jobs get them, from slurm/site.yaml or the shell.

Exit code 0: complete (also when the run diverged: that is a result). 1: an error, told in one line. 143: a stop was
asked for (SIGTERM); the segment saved itself and the same command goes on.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

#: What belongs to a site and not to a run: set once (slurm/site.yaml, or exported before snakemake).
LAYOUT_VARIABLE, EMULATE_VARIABLE = "REPRO_CLUSTER_LAYOUT", "REPRO_CLUSTER_EMULATE"


def emulation_asked() -> bool:
    """Whether $REPRO_CLUSTER_EMULATE is 1; raises ValueError where it is neither 0 nor 1."""
    value = os.environ.get(EMULATE_VARIABLE, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{EMULATE_VARIABLE}: {value!r} is neither 0 nor 1")
    return value == "1"


def main(arguments: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    explains = words[:1] == ["explain"]
    options = _parser(explains).parse_args(words[1:] if explains else words)
    is_last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
    logging.basicConfig(
        level=logging.INFO if is_last else logging.WARNING, format="%(message)s", stream=sys.stderr
    )

    from repro.cluster.frozen import load_segment
    from repro.cluster.layout import load_layout

    try:
        emulate = emulation_asked() if options.emulate is None else options.emulate
        segment = load_segment(options.run_yaml)
        layout = load_layout(options.layout)
        if explains:
            from repro.cluster.command import explain

            print(explain(segment, layout, emulate=emulate), end="")
            return 0
        from repro.cluster.job import Job

        choices = {"emulate": emulate, "threads": options.threads}
        return Job(segment, layout, options.data, options.state, **choices).run()
    except (ValueError, OSError) as error:
        logging.error("error: %s", error)
        return 1


def _parser(explains: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
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
            "--threads", type=int, default=1, help="CPU threads of a node, shared out to its GPUs"
        )
    parser.add_argument(
        "--layout",
        default=os.environ.get(LAYOUT_VARIABLE, "gb200"),
        help=f"a file of configs/cluster; default: ${LAYOUT_VARIABLE}, else gb200",
    )
    parser.add_argument(
        "--emulate",
        action=argparse.BooleanOptionalAction,
        help=f"compute 4-bit operands in software: exact, on any card, slower; default: ${EMULATE_VARIABLE}=1",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
