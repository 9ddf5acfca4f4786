"""Text to token ids: with tiktoken where it gives the same ids as the tokenizer, else with the tokenizer itself.

tiktoken is about three times as fast as tokenizers. It knows a vocabulary of byte strings with ranks: of two
neighbours whose join is in the vocabulary, those with the lowest rank are merged first. A tokenizer of
`repro.data.tokenizer` has a list of pairs in their order instead. Both give the same ids when

* the text is cut in the same pieces: PIECES are read alike by both libraries' regular expressions (a test goes
  through Unicode; other expressions are not taken for granted);
* each entry comes from one pair, entries are numbered in the order of the pairs, and joining an entry's bytes by the
  earlier pairs alone ends in that pair. Then no other pair with the same join is ever met, as what lies between two
  ends of tokens is encoded as it would be alone.

All of this is checked when an `Encoder` is made. Documents that hold the text of an added token, or have no place to
cut them for too long (see `cut`), go to the tokenizer.

Does not: add tokens at either end, or decode.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from repro.data.tokenizer import PIECES

if TYPE_CHECKING:
    from tiktoken import Encoding
    from tokenizers import Tokenizer

#: Characters from which a document is cut. tiktoken fails on a million blanks in a row; no cut lies within a run.
LONG = 100_000
#: Between these two, the expression PIECES ends a piece whatever stands before and after.
_CUT = re.compile(r"(?<=\S)(?= )|(?<=\n)(?=\S)")
#: `pre_tokenizer` of a tokenizer that tiktoken can stand in for, as tokenizer.json spells it.
_PRE_TOKENIZER = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
    ],
}
#: Settings of the model that would change what is merged; False, None and "" leave it alone.
_OTHER_MODELS = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "byte_fallback",
    "ignore_merges",
)


class Encoder:
    """Encodes as `tokenizer.encode_batch(texts, add_special_tokens=False)` does, id for id.

    Set `tokenizer.encode_special_tokens` before, not afterwards.

    Attributes:
        name: the library that encodes, and why when it is the slow one; for a line of progress.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._fast: Encoding | None = None
        try:
            self._fast = _export(tokenizer)
            self.name = "tiktoken"
        except _NotTheSameError as reason:
            self.name = f"tokenizers, as tiktoken might give other ids: {reason}"
        matched = [
            re.escape(token.content)
            for token in tokenizer.get_added_tokens_decoder().values()
            if not (token.special and tokenizer.encode_special_tokens)
        ]
        self._added = re.compile("|".join(matched) or r"(?!)")

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text: [tokens] uint32 arrays, read-only; all cores at work."""
        if self._fast is None:
            return self._slowly(texts)
        workers = _num_cores()
        size = -(-len(texts) // (4 * workers)) or 1
        with ThreadPoolExecutor(workers) as pool:
            parts = pool.map(self._quickly, [texts[at : at + size] for at in range(0, len(texts), size)])
            found = [ids for part in parts for ids in part]
        left = [index for index, ids in enumerate(found) if ids is None]
        for index, ids in zip(left, self._slowly([texts[index] for index in left]), strict=True):
            found[index] = ids
        return found

    def _slowly(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, np.uint32) for encoding in encodings]

    def _quickly(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """Ids of each text, None where the tokenizer has to do it."""
        found: list[np.ndarray | None] = []
        for text in texts:
            parts = cut(text)
            if any(len(part) > 2 * LONG for part in parts) or self._added.search(text):
                found.append(None)
                continue
            ids = [self._fast.encode_to_numpy(part, disallowed_special=()) for part in parts]
            found.append(ids[0] if len(ids) == 1 else np.concatenate(ids))
        return found


def cut(text: str) -> list[str]:
    """`text` in parts of LONG characters and somewhat more, cut only where no piece of PIECES reaches across.

    Such places are before a blank that follows a visible character, and after a line end that a visible character
    follows. The expression looks one character ahead, at the end of white space alone, and never behind: so a part
    has the same pieces alone as within the text.
    """
    parts, start = [], 0
    while place := _CUT.search(text, start + LONG):
        parts.append(text[start : place.start()])
        start = place.start()
    return [*parts, text[start:]]


class _NotTheSameError(Exception):
    """Why tiktoken may not stand in for a tokenizer."""


def _export(tokenizer: Tokenizer) -> Encoding:
    """The tokenizer without its added tokens, for tiktoken; raises _NotTheSameError."""
    content = json.loads(tokenizer.to_str())
    model, cutting = content["model"], content["pre_tokenizer"]
    if changes := [key for key in ("normalizer", "truncation", "padding") if content[key] is not None]:
        raise _NotTheSameError(f"it changes texts or ids besides ({', '.join(changes)})")
    if not _holds(cutting, _PRE_TOKENIZER):
        raise _NotTheSameError("it cuts text in other pieces (pre_tokenizer)")
    other = [key for key in _OTHER_MODELS if model.get(key)]
    if model["type"] != "BPE" or other:
        raise _NotTheSameError(f"its model is not a plain BPE ({', '.join(other) or model['type']})")
    try:
        import tiktoken
    except ImportError:
        raise _NotTheSameError("tiktoken is not installed") from None
    ranks = _ranks(model["vocab"], [tuple(pair) for pair in model["merges"]])
    return tiktoken.Encoding("exported", pat_str=PIECES, mergeable_ranks=ranks, special_tokens={})


def _holds(content: Any, expected: Any) -> bool:
    """Whether `content` says all that `expected` says; it may say more."""
    if isinstance(expected, dict):
        return isinstance(content, dict) and all(_holds(content.get(k), v) for k, v in expected.items())
    if isinstance(expected, list):
        same_length = isinstance(content, list) and len(content) == len(expected)
        return same_length and all(map(_holds, content, expected))
    return content == expected


def _ranks(vocab: dict[str, int], merges: list[tuple[str, str]]) -> dict[bytes, int]:
    """Id of each byte and of what each pair joins; raises _NotTheSameError where ids as ranks would not do."""
    alphabet = _byte_of_letter()
    if not alphabet.keys() <= vocab.keys():
        raise _NotTheSameError("a byte is missing in its vocabulary")
    order = dict.fromkeys(alphabet, -1)
    for place, (left, right) in enumerate(merges):
        joined = left + right
        if joined in order:
            raise _NotTheSameError(f"the entry {joined!r} comes from two pairs")
        if _join(joined, order) != [left, right]:
            raise _NotTheSameError(f"the entry {joined!r} may come from another pair than its own")
        order[joined] = place
    ids = [vocab[left + right] for left, right in merges]
    if ids != sorted(ids):
        raise _NotTheSameError("its entries are not numbered in the order of its pairs")
    return {bytes(alphabet[letter] for letter in entry): vocab[entry] for entry in order}


def _join(entry: str, order: dict[str, int]) -> list[str]:
    """What is left of the letters of `entry` when neighbours are joined, lowest in `order` first."""
    parts = list(entry)
    while True:
        joins = [(order.get(parts[i] + parts[i + 1], len(order)), i) for i in range(len(parts) - 1)]
        place, at = min(joins, default=(len(order), 0))
        if place == len(order):
            return parts
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def _byte_of_letter() -> dict[str, int]:
    """The byte-level alphabet: printable bytes of Latin-1 stand for themselves, the others for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def _num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
