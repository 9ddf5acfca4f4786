"""How each evaluation task asks: generators of items from held-out documents, one a task.

All have one signature, `Maker`: held-out documents, common words (commonest first), a seeded random generator. Wrong
choices are real text of the same kind and length, so a choice can't be told by its form; the right one's place is
uniform.

Does not: say which tasks there are, or write them (`repro.data.eval_items`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from repro.data.document import Document

#: Items a task: a standard error of about 3.5 %-points at an accuracy of a half.
ITEMS = 200
CHOICES = 4

Item = dict[str, Any]
Words = Sequence[str]
Maker = Callable[[Sequence[Document], Words, random.Random], Iterator[Item]]


def multiple_choice(question: str, right: str, wrong: Sequence[str], rng: random.Random) -> Item:
    """An item whose right choice stands at a uniform place among CHOICES."""
    choices = [right, *wrong]
    assert len(choices) == CHOICES == len(set(choices)), choices
    rng.shuffle(choices)
    return {"question": question, "choices": choices, "answer": choices.index(right)}


def next_word(documents: Sequence[Document], common: Words, rng: random.Random) -> Iterator[Item]:
    """The next word of held-out prose against three other common words."""
    known = set(common)
    for text in _passages(documents, ("crawl", "crawl_plus"), rng, characters=240):
        words = text.split(" ")
        places = [i for i in range(12, len(words)) if words[i].isalpha() and words[i] in known]
        if places:
            place = rng.choice(places)
            wrong = _distinct(rng, common, 3, without={words[place]})
            yield multiple_choice(" ".join(words[:place]), words[place], wrong, rng)


def definition(documents: Sequence[Document], common: Words, rng: random.Random) -> Iterator[Item]:
    """The gloss of a held-out headword against glosses of the same part of speech."""
    glosses: dict[str, list[tuple[str, str]]] = {}
    for document in documents:
        match = re.match(r"([^(\n]{1,60}) \((noun|verb|adj)\): (.{15,160})", document.text)
        if document.category == "wiki" and match:
            glosses.setdefault(match[2], []).append((match[1], match[3]))
    pairs = [(kind, *pair) for kind, found in sorted(glosses.items()) if len(found) > 8 for pair in found]
    rng.shuffle(pairs)
    for kind, word, gloss in pairs:
        wrong = _distinct(rng, [text for _, text in glosses[kind]], 3, without={gloss})
        yield multiple_choice(f"{word} ({kind}):", gloss, wrong, rng)


def arithmetic(documents: Sequence[Document], common: Words, rng: random.Random) -> Iterator[Item]:
    """Small sums and differences; wrong results are near the right one."""
    for question, result in _sums(rng):
        near = [value for value in range(result - 9, result + 10) if value not in (result, -result)]
        yield multiple_choice(question, str(result), [str(v) for v in rng.sample(near, 3)], rng)


def sums(documents: Sequence[Document], common: Words, rng: random.Random) -> Iterator[Item]:
    """Small sums and differences to be written out; the answer is the number."""
    for question, result in _sums(rng):
        yield {"question": question, "answer": str(result)}


def language(documents: Sequence[Document], common: Words, rng: random.Random) -> Iterator[Item]:
    """The language of a held-out passage; wrong choices are other languages of the same set."""
    by_language = _by_language(documents)
    names = sorted(by_language)
    if len(names) < CHOICES:
        return
    passages = [
        (name, passage)
        for name in names
        for text in by_language[name]
        for at in range(0, len(text), 160)
        if len(passage := text[at : at + 160].strip()) >= 40
    ]
    rng.shuffle(passages)
    for name, passage in passages:
        wrong = _distinct(rng, names, 3, without={name})
        yield multiple_choice(f"{passage}\nLanguage:", name, wrong, rng)


def foreign_continuation(documents: Sequence[Document], common: Words, rng: random.Random) -> Iterator[Item]:
    """How a held-out passage in another language goes on; wrong ones follow elsewhere in the source."""
    for source in sorted({document.source for document in documents if document.category == "multilingual"}):
        chosen = [document for document in documents if document.source == source]
        groups: dict[str, list[Document]] = {}
        for document in chosen:
            groups.setdefault(document.name.split("/")[0] if source == "declarations" else source, []).append(
                document
            )
        for _, group in sorted(groups.items()):
            yield from _continuations([d.text for d in group], rng, asked=80, shown=40, limit=ITEMS // 3)


def next_line(documents: Sequence[Document], common: Words, rng: random.Random) -> Iterator[Item]:
    """The next line of held-out code against other lines of the same indentation."""
    lines_at: dict[int, list[str]] = {}
    asked: list[tuple[str, str, int]] = []
    for document in (d for d in documents if d.category == "code"):
        lines = [line for line in document.text.split("\n") if line.strip()]
        for place in range(4, len(lines)):
            line = lines[place]
            indent = len(line) - len(line.lstrip())
            if 12 <= len(line.strip()) <= 70 and not line.strip().startswith("#"):
                lines_at.setdefault(indent, []).append(line.strip())
                asked.append(
                    ("\n".join(lines[place - 4 : place]) + "\n" + " " * indent, line.strip(), indent)
                )
    rng.shuffle(asked)
    for context, line, indent in asked:
        others = [other for other in lines_at[indent] if abs(len(other) - len(line)) < 20]
        if len(set(others)) >= CHOICES:
            yield multiple_choice(context, line, _distinct(rng, others, 3, without={line}), rng)


def identifier(documents: Sequence[Document], common: Words, rng: random.Random) -> Iterator[Item]:
    """Which name of the held-out file comes next on a line; wrong choices are other names of the same file."""
    asked: list[tuple[str, str, list[str]]] = []
    for document in (d for d in documents if d.category == "code"):
        names = sorted(set(re.findall(r"\b[a-z_]{4,20}\b", document.text)))
        lines = document.text.split("\n")
        for place in range(4, len(lines)):
            match = re.fullmatch(
                r"(\s+(?:return |if |for |raise |self\.)(?:\w+[ .(]+)?)([a-z_]{4,20})\b.*", lines[place]
            )
            if match and len(names) >= CHOICES:
                asked.append(("\n".join([*lines[place - 3 : place], match[1]]), match[2], names))
    rng.shuffle(asked)
    for context, name, names in asked:
        yield multiple_choice(context, name, _distinct(rng, names, 3, without={name}), rng)


def continuation(documents: Sequence[Document], common: Words, rng: random.Random) -> Iterator[Item]:
    """How a held-out passage goes on, against what follows elsewhere in held-out prose (as in HellaSwag)."""
    texts = [d.text for d in documents if d.category == "crawl"]
    yield from _continuations(texts, rng, asked=200, shown=80, limit=ITEMS)


def speech(documents: Sequence[Document], common: Words, rng: random.Random) -> Iterator[Item]:
    """Which speech answers another in a held-out scene; wrong choices are speeches of other places."""
    turns: list[tuple[str, str]] = []
    for document in (d for d in documents if d.category == "crawl_plus"):
        blocks = [block.strip() for block in document.text.split("\n\n")]
        for first, second in pairwise(blocks):
            spoken = all(re.match(r"[A-Z][A-Z ]+\n", block) for block in (first, second))
            if spoken and 20 < len(first) < 300 and 20 < len(second) < 200:
                turns.append((first, second))
    answers = [b.split("\n", 1)[1] for _, b in turns]
    rng.shuffle(turns)
    for first, second in turns:
        speaker, right = second.split("\n", 1)
        if len(set(answers)) >= CHOICES:
            wrong = _distinct(rng, answers, 3, without={right})
            yield multiple_choice(f"{first}\n\n{speaker}\n", right, wrong, rng)


def _passages(
    documents: Sequence[Document], categories: tuple[str, ...], rng: random.Random, *, characters: int
) -> Iterator[str]:
    """Stretches of held-out prose without line ends, about `characters` long, from all documents in turn."""
    texts = [" ".join(d.text.split()) for d in documents if d.category in categories]
    starts = [(text, at) for text in texts for at in range(0, len(text) - characters, 3 * characters)]
    rng.shuffle(starts)
    for text, at in starts:
        yield text[at : at + characters].split(" ", 1)[-1].rsplit(" ", 1)[0]


def _continuations(
    texts: Sequence[str], rng: random.Random, *, asked: int, shown: int, limit: int
) -> Iterator[Item]:
    """Passages of `asked` characters, each with the `shown` that follow and three that follow elsewhere."""
    pairs = []
    for text in (" ".join(text.split()) for text in texts):
        for at in range(0, len(text) - asked - shown, asked + shown):
            cut = text.find(" ", at + asked)
            cut = cut if 0 < cut < at + asked + 20 else at + asked
            pairs.append((text[at:cut], text[cut : cut + shown].strip()))
    endings = [ending for _, ending in pairs]
    if len(set(endings)) < CHOICES:
        return
    rng.shuffle(pairs)
    for beginning, ending in pairs[:limit]:
        yield multiple_choice(beginning, ending, _distinct(rng, endings, 3, without={ending}), rng)


def _by_language(documents: Sequence[Document]) -> dict[str, list[str]]:
    """Held-out passages by language; the id of a declaration's article names its language."""
    found: dict[str, list[str]] = {}
    for document in documents:
        if document.category == "multilingual" and document.source == "declarations":
            found.setdefault(document.name.split("/")[0], []).append(document.text)
    return found


def _distinct(rng: random.Random, population: Sequence[str], count: int, *, without: set[str]) -> list[str]:
    """`count` different members outside `without`, drawn without replacement."""
    return rng.sample(sorted(set(population) - without), count)


def _sums(rng: random.Random) -> Iterator[tuple[str, int]]:
    """ "Calculate 3 + 4." and its result, each problem once."""
    problems = [(a, sign, b) for a in range(2, 20) for b in range(2, 20) for sign in "+-"]
    rng.shuffle(problems)
    for a, sign, b in problems:
        yield f"Question: Calculate {a} {sign} {b}.\nAnswer:", a + b if sign == "+" else a - b
