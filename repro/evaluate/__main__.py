"""``python -m repro.evaluate RUN --results results/tiny --evals configs/evals/tiny.yaml``.

All checkpoints of the run, one after the other. The scores of a checkpoint are kept beside it, keyed by everything
that they depend on, and so are the answers of a published benchmark that is not finished: an evaluation that was
cut short goes on where it was.
Exit status 2 and one line on stderr for anything the user can mend.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from repro.evaluate.export import export
from repro.evaluate.folder import Means, add_options, run_command, score
from repro.evaluate.harness import Score, check_version, refuse_code
from repro.evaluate.kept import answers_folder, read_scores
from repro.evaluate.local_tasks import data_digest
from repro.evaluate.settings import EvalSettings, load_settings
from repro.evaluate.table import COLUMNS, rows_of_checkpoint
from repro.experiments import plan
from repro.options import OneLineParser
from repro.portable.checkpoint import StateLock
from repro.portable.csv_file import write_csv
from repro.portable.finished import CheckpointPoint, choose, run_checkpoints

log = logging.getLogger("repro.evaluate")


def main(argv: list[str] | None = None) -> int:
    parser = OneLineParser(prog="repro.evaluate", description="Accuracy of a run's checkpoints.")
    parser.add_argument("run", help="name of a trained run, e.g. 12b_nvfp4")
    parser.add_argument("--results", type=Path, required=True, help="results folder of the tier")
    parser.add_argument(
        "--configs", type=Path, default=Path("configs"), help="where the tier says which checkpoints"
    )
    parser.add_argument("--fresh", action="store_true", help="score again what was scored before")
    parser.add_argument(
        "--export", type=Path, help="keep the Hugging Face folders here, one a checkpoint (default: discard)"
    )
    add_options(parser)
    return run_command(parser, argv, evaluate_run)


def evaluate_run(options: argparse.Namespace) -> Path:
    """Evaluates the chosen checkpoints of a run; returns the path of the table.

    Raises ``ValueError`` in the user's words; checkpoints scored before it stay scored.
    """
    settings = load_settings(options.evals)
    check_version(settings)
    refuse_code(settings.tasks, allowed=options.allow_code_execution)
    kept = run_checkpoints(options.results, options.run)
    points, means = choose(kept, evaluation_tokens(kept, configs_dir=options.configs)), Means.of(options)
    rows = []
    for number, point in enumerate(points, start=1):
        started = time.perf_counter()
        new = rows_of_checkpoint(point, settings.tasks, _scores(point, settings, options, means))
        rows += new
        log.info(
            "%s: checkpoint %d of %d at %.1f %% of the horizon in %.1f s: %s",
            options.run,
            number,
            len(points),
            100 * point.fraction,
            time.perf_counter() - started,
            ", ".join(f"{row['group']} {row['value']:.3f}" for row in new if row["task"] == "mean"),
        )
    path = options.results / "evaluations" / f"{options.run}.csv"
    write_csv(path, rows, columns=COLUMNS)
    return path


def evaluation_tokens(kept: Sequence[CheckpointPoint], *, configs_dir: Path) -> tuple[int, ...]:
    """Positions that the run's tier wants evaluated (`evaluate_at`, and the end); the end for any other run."""
    if not kept:
        return ()
    run = plan.load(kept[0].frozen["tier"], configs_dir=configs_dir).run(kept[0].run)
    return run.evaluation_tokens or (run.end_tokens,)


def _scores(
    point: CheckpointPoint, settings: EvalSettings, options: argparse.Namespace, means: Means
) -> dict[str, Score]:
    """Scores of one checkpoint, from the file kept beside it or from lm-eval."""
    data_dir = options.results / "data" / "evals"
    tokenizer_dir = options.results / "data" / "tokenizer"
    key = _key(point, settings, data_dir, tokenizer_dir)
    kept = point.state_dir / "evaluations" / f"{point.tokens}-{key}.json"
    if options.fresh:
        kept.unlink(missing_ok=True)
        for task in settings.tasks:
            shutil.rmtree(answers_folder(kept, task.name), ignore_errors=True)
    scores = read_scores(kept)
    if any(task.name not in scores for task in settings.tasks):
        place = (
            contextlib.nullcontext(options.export / f"{point.run}-{point.tokens}")
            if options.export
            else _discarded(kept.parent / f"{point.tokens}.export")
        )
        with place as folder:
            export(point, folder, tokenizer_dir=tokenizer_dir)
            scores = score(folder, settings, options.evals, kept, data_dir=data_dir, means=means)
    for answers in kept.parent.glob(f"{point.tokens}-*.answers"):  # of settings that were changed meanwhile
        shutil.rmtree(answers, ignore_errors=True)
    return scores


@contextlib.contextmanager
def _discarded(folder: Path) -> Iterator[Path]:
    """``folder``, which is removed at the end, also after a failure; another evaluation's is left alone.

    It lies with the results: 12B parameters are 25 GB, and /tmp is small, or memory, on many nodes. Its name is the
    checkpoint's, so that what a killed evaluation left there is removed by the next one.
    """
    lock = StateLock(folder.parent, being="evaluated")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _key(point: CheckpointPoint, settings: EvalSettings, data_dir: Path, tokenizer_dir: Path) -> str:
    """Hash of all that a checkpoint's scores depend on: weights, settings, items, tokenizer, library versions."""
    content = {
        "run_hash": point.frozen["run_hash"],
        "tokens": point.tokens,
        "settings": settings.model_dump(mode="json", exclude={"name", "source"}),
        "data": {task.data: data_digest(data_dir / task.data) for task in settings.tasks if task.data},
        "tokenizer": data_digest(tokenizer_dir / "tokenizer.json"),
        "versions": {name: version(name) for name in ("lm_eval", "torch", "transformers")},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
