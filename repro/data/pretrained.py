"""The finished tokenizer of a model family, in the place of one trained here (`repro.data.tokenizer`).

    FOLDER/tokenizer/{tokenizer.json,tokenizer_config.json}   loads with transformers.AutoTokenizer
    FOLDER/tokenizer/origin.json                              repository, revision, entries, end-of-document token

Does not: change the tokenizer; entries that it lacks up to the models' vocabulary are never seen in training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from repro.data.hub import fetch_tokenizer
from repro.data.tokenizer import load_tokenizer
from repro.experiments.hub_spec import PretrainedTokenizerSpec


def write_tokenizer(wanted: PretrainedTokenizerSpec, data_dir: Path, corpora: Path | None) -> dict[str, Any]:
    """Fetches the tokenizer into the data folder and checks that it fits the models; returns its origin.

    Raises:
        ValueError: no access or network, more entries than the models' vocabulary, or no end-of-document token.
    """
    folder = data_dir / "tokenizer"
    (folder / "origin.json").unlink(missing_ok=True)  # what it tells of is about to be replaced
    revision = fetch_tokenizer(wanted.repo, wanted.revision, folder, corpora)
    tokenizer = load_tokenizer(data_dir)
    entries = tokenizer.get_vocab_size(with_added_tokens=True)
    if entries > wanted.vocab_size:
        raise ValueError(
            f"tokenizer {wanted.repo}: {entries} entries, but the models' vocab_size is {wanted.vocab_size} "
            "(tokenizer.vocab_size of the data, vocab_size of configs/models)"
        )
    end = wanted.end_of_document or _eos_token(folder / "tokenizer_config.json")
    number = tokenizer.token_to_id(end) if end else None
    if number is None:
        raise ValueError(f"tokenizer {wanted.repo}: end_of_document {end!r} is none of its {entries} entries")
    origin = {
        "repo": wanted.repo,
        "revision": revision,
        "entries": entries,
        "end_of_document": end,
        "end_of_document_id": number,
    }
    temporary = folder / ".origin.json"
    temporary.write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / "origin.json")
    return origin


def read_origin(data_dir: Path) -> dict[str, Any]:
    """What `write_tokenizer` returned; raises ValueError when it has not run."""
    path = data_dir / "tokenizer" / "origin.json"
    if not path.is_file():
        raise ValueError(f"{path}: missing; fetch the tokenizer first (--step tokenizer)")
    return json.loads(path.read_text(encoding="utf-8"))


def _eos_token(path: Path) -> str | None:
    """The eos_token of a tokenizer_config.json: a text, or a record with one."""
    token = json.loads(path.read_text(encoding="utf-8")).get("eos_token")
    return token["content"] if isinstance(token, dict) else token
