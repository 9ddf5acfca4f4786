"""Removes repeated text across all sources and both splits; validation text never stays in training.

Three passes, each over all sources together:

1. whole documents whose normalised text was seen before are dropped;
2. paragraphs (blocks between empty lines) of at least MIN_PARAGRAPH normalised characters that were seen before are
   dropped from the later document;
3. training paragraphs that a run of NGRAM words of any validation document touches are dropped: near-duplicates,
   quotations and reprints. A word is a run of letters and digits; a Han or Kana character counts as a word.

Validation goes first in 1 and 2, so that of two equal texts the training one goes. Generated documents take part in
pass 1 alone: their template sentences repeat by construction (style "generated"; a validation item has other numbers
or names than any training item, but the same wording: its loss shows learning, not generalisation).

Does not: compare by meaning, or find near-duplicates inside training.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice

from repro.data.clean import MIN_CHARACTERS
from repro.data.document import Document

MIN_PARAGRAPH = 60
NGRAM = 13

#: From so many characters on, the third pass is worth further processes.
LARGE_CHARACTERS = 50_000_000
PROCESSES = 2
_STRETCH = 20_000  # documents
_FORKED: list = []  # (documents, held_out) as a fork finds them

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")


@dataclass
class DedupCounts:
    """What was dropped: documents, then characters of paragraphs."""

    repeated_documents: int = 0
    repeated_paragraph_characters: int = 0
    near_validation_characters: int = 0

    def as_dict(self) -> dict[str, int]:
        """For the manifest."""
        return asdict(self)


def words(text: str) -> list[str]:
    """The words that comparison sees: lower-case, without punctuation."""
    return _WORD.findall(text.lower())


def ngrams(text: str) -> Iterator[int]:
    """Hashes of every run of NGRAM words; equal within one process only."""
    return _hashes(words(text))


def _hashes(found: list[str]) -> Iterator[int]:
    # zip and map run without a step of the interpreter per word, which is most of the time of a large corpus.
    return map(hash, zip(*(islice(found, start, None) for start in range(NGRAM)), strict=False))


def _fingerprint(text: str) -> bytes:
    """Equal for texts that differ in case and white space alone (signs count: 4 - 1 is not 4 + 1)."""
    return hashlib.blake2b(" ".join(text.lower().split()).encode(), digest_size=12).digest()


def deduplicate(
    training: list[Document], validation: list[Document]
) -> tuple[list[Document], list[Document], DedupCounts]:
    """(training, validation, what was dropped); order kept."""
    counts = DedupCounts()
    seen_documents: set[bytes] = set()
    validation = _drop_seen_documents(validation, seen_documents, counts)
    training = _drop_seen_documents(training, seen_documents, counts)

    seen_paragraphs: set[bytes] = set()

    def is_repeated(paragraph: str) -> bool:
        if len(paragraph) < MIN_PARAGRAPH:
            return False
        fingerprint = _fingerprint(paragraph)
        repeated = fingerprint in seen_paragraphs
        seen_paragraphs.add(fingerprint)
        return repeated

    before = _characters(training) + _characters(validation)
    validation = _drop_paragraphs(validation, is_repeated)
    training = _drop_paragraphs(training, is_repeated)
    counts.repeated_paragraph_characters = before - _characters(training) - _characters(validation)

    held_out = {gram for d in validation if d.style != "generated" for gram in ngrams(d.text)}
    before = _characters(training)
    training = _all_without_overlaps(training, held_out)
    counts.near_validation_characters = before - _characters(training)
    return training, validation, counts


def _all_without_overlaps(documents: list[Document], held_out: set[int]) -> list[Document]:
    """Every document `without_overlaps`, in order; a large corpus is shared out to PROCESSES forked processes.

    Forked, not spawned: the hashes of `held_out` hold in this process and its forks alone.
    """
    if _characters(documents) < LARGE_CHARACTERS:
        return [kept for d in documents if (kept := without_overlaps(d, held_out)) is not None]
    _FORKED[:] = [documents, held_out]
    starts = range(0, len(documents), _STRETCH)
    try:
        with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
            changed = {
                index: text for part in pool.map(_changed, starts, chunksize=1) for index, text in part
            }
    finally:
        _FORKED.clear()
    kept = []
    for index, document in enumerate(documents):
        text = changed.get(index, document.text)
        if text is not None:
            kept.append(document if text is document.text else document.with_text(text))
    return kept


def _changed(start: int) -> list[tuple[int, str | None]]:
    """(index, new text or None) of the documents of one stretch that lose something; runs in a fork."""
    documents, held_out = _FORKED
    found: list[tuple[int, str | None]] = []
    for index, document in enumerate(documents[start : start + _STRETCH], start):
        kept = without_overlaps(document, held_out)
        if kept is not document:
            text = None if kept is None else kept.text
            if text != document.text:
                found.append((index, text))
    return found


def without_overlaps(document: Document, held_out: set[int]) -> Document | None:
    """The document without paragraphs that a run of words of `held_out` touches; None when too little is left.

    Runs may cross paragraphs (short speeches of a play). Taking paragraphs out makes new neighbours, so this repeats
    until nothing is found.
    """
    if document.style == "generated" or held_out.isdisjoint(ngrams(document.text)):
        return document if len(document.text) >= MIN_CHARACTERS else None
    paragraphs = document.text.split("\n\n")
    while True:
        owners = [(number, word) for number, paragraph in enumerate(paragraphs) for word in words(paragraph)]
        found = [word for _, word in owners]
        touched: set[int] = set()
        for start, gram in enumerate(_hashes(found)):
            if gram in held_out:
                touched.update(number for number, _ in owners[start : start + NGRAM])
        if not touched:
            break
        paragraphs = [paragraph for number, paragraph in enumerate(paragraphs) if number not in touched]
    text = "\n\n".join(paragraphs)
    return document.with_text(text) if len(text) >= MIN_CHARACTERS else None


def _characters(documents: list[Document]) -> int:
    return sum(len(document.text) for document in documents)


def _drop_seen_documents(documents: list[Document], seen: set[bytes], counts: DedupCounts) -> list[Document]:
    kept = []
    for document in documents:
        fingerprint = _fingerprint(document.text)
        if fingerprint in seen:
            counts.repeated_documents += 1
        else:
            seen.add(fingerprint)
            kept.append(document)
    return kept


def _drop_paragraphs(documents: list[Document], is_unwanted: Callable[[str], bool]) -> list[Document]:
    """Documents without their unwanted paragraphs; one that is left too short goes altogether."""
    kept = []
    for document in documents:
        if document.style == "generated":
            kept.append(document)
            continue
        paragraphs = document.text.split("\n\n")
        wanted = [paragraph for paragraph in paragraphs if not is_unwanted(paragraph)]
        if len(wanted) == len(paragraphs):
            kept.append(document)
        elif len(text := "\n\n".join(wanted)) >= MIN_CHARACTERS:
            kept.append(document.with_text(text))
    return kept
