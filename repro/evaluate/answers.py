"""Answers of a benchmark, kept part by part: an evaluation that its time limit stops goes on where it was.

MMLU-Pro generates 12,000 answers of up to 2,048 tokens: hours on the GPUs of a node. Requests are asked in parts,
each one call of lm-eval's model, whose answers are kept in a file that is written whole. What is asked together does
not depend on what was kept, so a stopped evaluation ends with the numbers of one that was not: in BF16 the same
question padded with others may be answered otherwise. For that reason this is not lm-eval's own `use_cache`, which
keeps single answers and asks the rest of a stopped batch together with others (and is an SQLite file, which the file
systems of clusters lock badly).

Not here: scores, which are kept a benchmark at a time (repro.evaluate.folder).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.portable.metrics import write_whole

log = logging.getLogger("repro.evaluate")

#: How each line begins that says that something was kept: by it the launcher of a cluster's job sees progress.
KEPT = "kept:"

#: Batches a part, by kind of request: minutes on a GPU. A generated batch is some thousand forward passes.
_BATCHES = {"generate_until": 4, "loglikelihood": 64, "loglikelihood_rolling": 64}


class KeptAnswers:
    """lm-eval's model `lm`, which is not asked again what `folder` holds the answers of.

    of: what answers depend on besides the requests (model, settings). Sampled answers are not kept.
    """

    def __init__(self, lm: Any, folder: Path, *, of: str, batch_size: int) -> None:
        self._lm, self._folder, self._of, self._batch_size = lm, folder, of, batch_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lm, name)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        if any(request.args[1].get("do_sample") for request in requests):
            return self._lm.generate_until(requests)
        return self._answers("generate_until", requests)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        return [(value, greedy) for value, greedy in self._answers("loglikelihood", requests)]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        return self._answers("loglikelihood_rolling", requests)

    def _answers(self, kind: str, requests: Sequence[Any]) -> list[Any]:
        """In the order of the requests; asked by the length of their text, so that a batch needs little padding."""
        order = sorted(range(len(requests)), key=lambda index: -len(requests[index].args[0]))
        size = self._batch_size * _BATCHES[kind]
        answers: list[Any] = [None] * len(requests)
        for first in range(0, len(order), size):
            part = order[first : first + size]
            found = self._part(
                kind, [requests[index] for index in part], f"{first + len(part)} of {len(order)}"
            )
            for index, answer in zip(part, found, strict=True):
                answers[index] = answer
        return answers

    def _part(self, kind: str, requests: Sequence[Any], position: str) -> list[Any]:
        from lm_eval.api.model import hash_args

        # Each of several processes has files of its own, also where they ask the same.
        of = [self._of, self._lm.rank, self._lm.world_size]
        path = self._folder / f"{hash_args(kind, [*of, *(request.args for request in requests)])}.json"
        try:
            answers = json.loads(path.read_text(encoding="utf-8"))
            if len(answers) == len(requests):
                return answers
        except (OSError, TypeError, ValueError):
            pass  # not there, or damaged: asked (again)
        answers = getattr(self._lm, kind)(requests)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(answers).encode())
        log.info("%s answers of %s requests", KEPT, position)
        return answers
