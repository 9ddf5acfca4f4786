"""Scores of one Hugging Face folder: ``python -m repro.evaluate.folder FOLDER --evals EVALS_YAML --out FILE``.

Any folder that transformers (or vLLM) loads with its tokenizer, whoever trained it. Scores are kept in FILE after
each benchmark (repro.evaluate.kept), and a call that finds some goes on with those that are missing; engine `hf` also
keeps the answers of the benchmark that it is at (repro.evaluate.answers), which takes hours where they are generated.
On several GPUs (``--gpus N``) engine `hf` runs one process a GPU through accelerate, each with the whole model and
every N-th question; engine `vllm` deals questions out to N copies itself.

Not here: how a model is loaded (repro.evaluate.loading), how a benchmark is run and read (repro.evaluate.harness),
where checkpoints come from (repro.evaluate).
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.evaluate.answers import KEPT, KeptAnswers
from repro.evaluate.harness import Score, check_version, go_offline, refuse_code, score_tasks
from repro.evaluate.kept import Owner, answers_folder, keep_scores, read_scores
from repro.evaluate.loading import load_lm
from repro.evaluate.settings import EvalSettings, EvalTask, load_settings
from repro.options import OneLineParser, whole_number

log = logging.getLogger("repro.evaluate")


@dataclass(frozen=True)
class Means:
    """What an evaluation may use: a device (None: cuda where there is one), GPUs that share the questions, and
    whether code that the model wrote may run."""

    device: str | None = None
    gpus: int = 1
    allow_code_execution: bool = False

    @classmethod
    def of(cls, options: argparse.Namespace) -> Means:
        """As the options of `add_options` say. Raises ValueError for a device that is not here."""
        from repro.portable.gpu import device_of

        device = device_of(options.device) if options.device else None
        return cls(device, options.gpus, options.allow_code_execution)


def score(
    folder: Path, settings: EvalSettings, evals: Path, kept: Path, *, data_dir: Path, means: Means
) -> dict[str, Score]:
    """`score_folder` on the GPUs of this machine: engine `hf` in one process each, which read ``evals`` again.

    Raises ``ValueError`` as it does, or when the processes fail (they said why).
    """
    if means.gpus == 1 or settings.engine != "hf":
        return score_folder(folder, settings, kept, data_dir=data_dir, means=means)
    if kept.exists():  # refused once here, not by each process
        read_scores(kept, Owner.of(folder, settings, data_dir))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1"]
    command += ["--num_processes", str(means.gpus), "--mixed_precision", "no", "--dynamo_backend", "no"]
    command += ["-m", "repro.evaluate.folder", str(folder), "--evals", str(evals), "--out", str(kept)]
    command += ["--data", str(data_dir), *(["--allow-code-execution"] if means.allow_code_execution else [])]
    if code := subprocess.run(command, check=False).returncode:
        raise ValueError(
            f"{folder}: the evaluation on {means.gpus} GPUs ended with exit code {code}; see above"
        )
    return read_scores(kept)


def score_folder(
    folder: Path, settings: EvalSettings, kept: Path, *, data_dir: Path, means: Means
) -> dict[str, Score]:
    """Scores of every task of ``settings``, those in ``kept`` included, which is written after each benchmark.

    Raises ``ValueError`` in the user's words, as repro.evaluate.harness and when ``kept`` is another model's or of
    other settings; what was scored before stays in ``kept``.
    """
    check_version(settings)
    refuse_code(settings.tasks, allowed=means.allow_code_execution)
    owner = Owner.of(folder, settings, data_dir)
    scores = read_scores(kept, owner)
    missing = [task for task in settings.tasks if task.name not in scores]
    if not missing:
        return scores
    lm = load_lm(folder, settings, device=means.device, gpus=means.gpus)
    for tasks in _batches(missing):
        answers = answers_folder(kept, tasks[0].name)
        asked = lm
        if settings.engine == "hf" and tasks[0].template is None:
            asked = KeptAnswers(lm, answers, of=owner.of_answers, batch_size=settings.batch_size)
        new = score_tasks(asked, tasks, data_dir=data_dir, allow_code_execution=means.allow_code_execution)
        scores |= new
        if new:  # one of several processes has them
            keep_scores(kept, new, owner)
            shutil.rmtree(answers, ignore_errors=True)
            shown = ", ".join(f"{name} {score.value:.3f}" for name, score in new.items())
            log.info("%s scores of %s: %s", KEPT, folder.name, shown)
    return scores


def _batches(tasks: Sequence[EvalTask]) -> list[list[EvalTask]]:
    """Local tasks all at once, as they take seconds; benchmarks one by one."""
    local = [task for task in tasks if task.template is not None]
    return [*([local] if local else []), *([task] for task in tasks if task.template is None)]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What both commands of repro.evaluate take."""
    parser.add_argument("--evals", type=Path, required=True, help="configs/evals/<tier>.yaml")
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: cuda where there is one")
    parser.add_argument(
        "--gpus", type=whole_number(), default=1, help="GPUs of this machine to share the questions"
    )
    parser.add_argument(
        "--allow-code-execution",
        action="store_true",
        help="let pass@1 tasks run code that the model wrote (only inside a sandbox)",
    )


def run_command(parser: argparse.ArgumentParser, argv: list[str] | None, act: Callable[[Any], Any]) -> int:
    """`act` with the parsed options: exit status 0, or 2 and one line on stderr for what the user can mend; 130 when
    stopped (Ctrl-C)."""
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)
    go_offline()
    try:
        act(options)
    except (ValueError, OSError) as error:  # OSError: disk full, no permission
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: stopped; run again to go on", file=sys.stderr)
        return 130
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = OneLineParser(prog="repro.evaluate.folder", description="Scores of a Hugging Face folder.")
    parser.add_argument("folder", type=Path, help="model and tokenizer, as save_pretrained writes them")
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON file of the scores; goes on where it stopped"
    )
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the files that local tasks name")
    add_options(parser)
    return run_command(parser, argv, _score_and_print)


def _score_and_print(options: argparse.Namespace) -> None:
    settings = load_settings(options.evals)
    refuse_code(settings.tasks, allowed=options.allow_code_execution)
    means = Means.of(options)
    scores = score(options.folder, settings, options.evals, options.out, data_dir=options.data, means=means)
    if os.environ.get("RANK", "0") != "0":
        return
    for task in settings.tasks:
        found = scores[task.name]
        percent = f"{100 * found.value:6.2f} ± {100 * found.stderr:.2f}"
        print(f"{task.name:<24} {percent}  ({found.num_items} items)")


if __name__ == "__main__":
    sys.exit(main())
