"""``python -m repro.mechanisms RUN --results results/tiny``: measures a trained run's checkpoints, layer by layer.

Writes mechanisms/RUN.csv with the columns below. Which checkpoints: `measure_at` of the tier, or the run's end.
Exit status 2 and one line on stderr for anything the user can mend, 130 when stopped (Ctrl-C).
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.cluster.finished import load_model
from repro.experiments import plan
from repro.experiments.recipe import Recipe
from repro.mechanisms.capture import capture, held_out_batch
from repro.mechanisms.measure import measure
from repro.options import OneLineParser
from repro.portable.csv_file import write_csv
from repro.portable.finished import CheckpointPoint, choose, run_checkpoints
from repro.portable.gpu import device_of

COLUMNS = ("run", "tokens", "fraction", "layer", "block", "gemm", "tensor", "quantity", "variant", "value")

log = logging.getLogger("repro.mechanisms")


def main(argv: list[str] | None = None) -> int:
    parser = OneLineParser(prog="repro.mechanisms", description="The four techniques as numbers.")
    parser.add_argument("run", help="name of a trained run, e.g. 12b_nvfp4")
    parser.add_argument("--results", type=Path, required=True, help="results folder of the tier")
    parser.add_argument(
        "--configs", type=Path, default=Path("configs"), help="where the tier says which checkpoints"
    )
    parser.add_argument(
        "--draws", type=int, default=32, help="stochastic draws for the bias, an even number (default: 32)"
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: cuda where there is one")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)
    try:
        if options.draws < 2 or options.draws % 2:
            raise ValueError(f"--draws {options.draws}: must be even, and 2 or more")
        measure_run(options)
    except (ValueError, OSError) as error:  # OSError: disk full, no permission
        print(f"repro.mechanisms: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("repro.mechanisms: stopped; nothing is kept of it", file=sys.stderr)
        return 130
    return 0


def measure_run(options: argparse.Namespace) -> Path:
    """Measures the chosen checkpoints of a run; returns the path of the table."""
    device = device_of(options.device)
    kept = run_checkpoints(options.results, options.run)
    points = choose(kept, measure_tokens(kept, configs_dir=options.configs))
    rows = []
    for point in points:
        started = time.perf_counter()
        rows += measure_point(
            point, data_dir=options.results / "data", num_draws=options.draws, device=device
        )
        log.info(
            "%s at %.1f %% of the horizon in %.1f s",
            options.run,
            100 * point.fraction,
            time.perf_counter() - started,
        )
    path = options.results / "mechanisms" / f"{options.run}.csv"
    write_csv(path, rows, columns=COLUMNS)
    return path


def measure_tokens(kept: Sequence[CheckpointPoint], *, configs_dir: Path) -> tuple[int, ...]:
    """Positions that the run's tier wants measured (`measure_at`); the run's end for any other run."""
    if not kept:
        return ()
    run = plan.load(kept[0].frozen["tier"], configs_dir=configs_dir).run(kept[0].run)
    return run.measure_tokens or (run.end_tokens,)


def measure_point(
    point: CheckpointPoint, *, data_dir: Path, num_draws: int, device: str
) -> list[dict[str, Any]]:
    """The rows of one checkpoint: every quantity of every linear layer, those that the run keeps in BF16 included."""
    recipe, seed = Recipe.model_validate(point.frozen["recipe"]), point.frozen["seed"]
    batch = held_out_batch(data_dir, point.frozen).to(device)
    layers = capture(load_model(point).to(device), recipe, batch, seed=seed)
    position = {"run": point.run, "tokens": point.tokens, "fraction": round(point.fraction, 6)}
    return [
        {
            **position,
            "layer": tensors.layer,
            "block": tensors.block,
            **measured._asdict(),
            "value": f"{measured.value:.6g}",
        }
        for tensors in layers
        for measured in measure(tensors, seed=seed, num_draws=num_draws)
    ]


if __name__ == "__main__":
    sys.exit(main())
