"""Cleaning, splitting and deduplicating texts."""

from repro.data.clean import clean, clean_text
from repro.data.dedup import NGRAM, _all_without_overlaps, deduplicate, ngrams, words
from repro.data.document import Document
from repro.data.prepare import cap
from repro.data.split import is_held_out, split
from repro.experiments.data_spec import HoldOutSpec

HOLD_OUT = HoldOutSpec(fraction=0.1, salt="test")
LONG = "The whale swam slowly past the ship while every man on deck held his breath and waited for the call"


def document(name: str, text: str, *, style: str = "prose", source: str = "s") -> Document:
    return Document(source, "crawl", name, text, style)


def test_cleaning_makes_unicode_space_and_line_ends_uniform():
    raw = "\ufeffCafe\u0301\u00a0au  lait\r\n\r\n\r\n\r\nline two \t\r\n-----\nend\u200b"
    assert clean_text(raw, "prose") == "Caf\u00e9 au lait\n\nline two\n\nend"


def test_cleaning_code_keeps_indentation_and_drops_notices():
    raw = "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n# Copyright (c) 2001 Someone\nif x:\n    y  = 1\n"
    assert clean_text(raw, "code") == "if x:\n    y  = 1"
    assert clean_text("/*\n * Copyright 1999 X\n */\n\nint x;\n/* Copyright of y */", "code") == (
        "int x;\n/* Copyright of y */"
    )
    assert clean_text("// SPDX-License-Identifier: GPL\n// more\nint x;", "code") == "int x;"
    assert clean_text("// What this does\nint x;", "code") == "// What this does\nint x;"


def test_a_text_cannot_end_a_document():
    assert "<|endoftext|>" not in clean_text("before <|endoftext|> after", "prose")


def test_short_and_undecodable_documents_go():
    kept = clean([document("short", "too short"), document("bad", LONG + "\ufffd"), document("good", LONG)])
    assert [d.name for d in kept] == ["good"]


def test_split_is_by_name_alone_and_near_its_share():
    documents = [document(str(n), "text") for n in range(5000)]
    training, validation = split(documents, HOLD_OUT)
    assert 400 < len(validation) < 600, f"10 % of 5000 expected, got {len(validation)}"
    for d in documents[:200]:
        assert is_held_out(d.key, HOLD_OUT) == is_held_out(d.with_text("other").key, HOLD_OUT)
    again, _ = split(reversed(documents[:2500]), HOLD_OUT)
    assert {d.key for d in again} <= {d.key for d in training}, "a document changed sides with its neighbours"


def test_another_salt_holds_out_other_documents():
    keys = [f"source/{number}" for number in range(2000)]
    one, other = (
        {key for key in keys if is_held_out(key, HoldOutSpec(fraction=0.1, salt=salt))} for salt in "ab"
    )
    assert len(one & other) < len(one) / 2, "two draws of a tenth share a hundredth"


def test_of_equal_documents_the_held_out_one_stays():
    training, validation, counts = deduplicate([document("t", LONG)], [document("v", LONG.upper())])
    assert (training, len(validation), counts.repeated_documents) == ([], 1, 1)


def test_repeated_paragraphs_go_from_the_later_document_across_sources():
    own = "A paragraph of its own, which no other document of any source contains in full or in part."
    training, _, counts = deduplicate(
        [document("1", LONG), document("2", f"{LONG}\n\n{own}", source="other")], [document("v", "x" * 80)]
    )
    assert [d.text for d in training] == [LONG, own]
    assert counts.repeated_paragraph_characters == len(LONG) + 2


def test_of_a_paragraph_on_both_sides_the_held_out_one_stays():
    training, validation = [document("a", f"{LONG}\n\nOnly in training: {LONG[::-1]}")], [document("b", LONG)]
    kept, held_out, counts = deduplicate(training, validation)
    assert [d.text for d in held_out] == [LONG]
    assert [LONG in d.text for d in kept] == [False]
    assert counts.repeated_paragraph_characters > 0


def test_paragraphs_that_quote_held_out_text_go_even_in_pieces():
    # The quotation is spread over short paragraphs, each below the run length: a play's speeches.
    pieces = LONG.split(" ")
    spread = "\n\n".join(" ".join(pieces[at : at + 4]) for at in range(0, len(pieces), 4))
    own = "Nothing of this sentence stands in the text that was held out from training at all"
    training, validation, _ = deduplicate(
        [document("t", f"{own}\n\n{spread}\n\n{own} twice")], [document("v", LONG)]
    )
    held_out = set(ngrams(validation[0].text))
    assert own in training[0].text
    assert not [gram for gram in ngrams(training[0].text) if gram in held_out]


def test_a_paragraph_that_holds_one_word_of_a_quotation_goes_with_it():
    quoted = LONG.split(" ")[:NGRAM]
    first, second = " ".join(quoted[:-1]), f"{quoted[-1]} and much that was never held out from anything"
    training, _, _ = deduplicate(
        [document("t", f"{LONG[::-1]}\n\n{first}\n\n{second}")], [document("v", " ".join(quoted))]
    )
    assert [d.text for d in training] == [LONG[::-1]]


def test_paragraphs_that_become_neighbours_are_compared_again():
    """What stands between the two halves of a quotation quotes as well, in other company."""
    quoted = LONG.split(" ")[:NGRAM]
    halves = [" ".join(quoted[:6]), " ".join(quoted[6:])]
    between = " ".join(f"word{number}" for number in range(NGRAM))
    training, _, _ = deduplicate(
        [document("t", f"{LONG[::-1]}\n\n{halves[0]}\n\nOr {between}\n\n{halves[1]}")],
        [document("v", f"{' '.join(quoted)}\n\n{between}")],
    )
    assert [d.text for d in training] == [LONG[::-1]]


def test_short_paragraphs_may_repeat():
    """Headings, and "Yes, my lord." in a play."""
    documents = [document(name, f"ACT I.\n\n{LONG} {name}") for name in ("one", "two")]
    training, _, counts = deduplicate(documents, [])
    assert [d.text for d in training] == [d.text for d in documents]
    assert counts.repeated_paragraph_characters == 0


def test_generated_documents_are_compared_whole():
    template = (
        "Question: A box holds {} apples and somebody takes away two of them, how many are left in it then?"
    )
    training, validation, _ = deduplicate(
        [document(str(n), template.format(n), style="generated") for n in (3, 4, 5)],
        [document("v", template.format(4), style="generated")],
    )
    assert [d.name for d in training] == ["3", "5"], "only the item that equals the held-out one may go"
    assert len(validation) == 1


def test_signs_count_when_documents_are_compared():
    training, _, _ = deduplicate(
        [document("minus", "Calculate 4 - 1 - 7 and write it out", style="generated")],
        [document("plus", "Calculate 4 + 1 + 7 and write it out", style="generated")],
    )
    assert len(training) == 1


def test_words_cover_scripts_without_blanks():
    assert words("Ab-c, 12! \u5e8a\u524d\u660e\u6708") == [
        "ab",
        "c",
        "12",
        "\u5e8a",
        "\u524d",
        "\u660e",
        "\u6708",
    ]
    assert len(list(ngrams("\u5e8a\u524d\u660e\u6708\u5149" * 4))) == 20 - NGRAM + 1


def test_cap_keeps_whole_documents_and_other_sources():
    documents = [document(str(n), "x" * 100) for n in range(10)] + [document("o", "y" * 100, source="other")]
    kept = cap(documents, {"s": 300, "other": None})
    assert [d.source for d in kept].count("s") == 3
    assert kept[-1].source == "other"
    assert kept == cap(documents, {"s": 300, "other": None})


def test_a_corpus_shared_out_to_processes_loses_the_same_as_a_small_one(monkeypatch):
    words = [f"word{i}" for i in range(3000)]
    held_out = [Document("s", "crawl", "v", " ".join(words[:60]))]
    training = [
        Document("s", "crawl", "near", f"{' '.join(words[20:40])}\n\n{' '.join(words[100:160])}"),
        Document("s", "crawl", "all of it", " ".join(words[5:30])),
        Document("s", "crawl", "far", " ".join(words[200:260])),
    ]
    alone = deduplicate(training, held_out)
    monkeypatch.setattr("repro.data.dedup.LARGE_CHARACTERS", 0)
    monkeypatch.setattr("repro.data.dedup._STRETCH", 2)
    shared = deduplicate(training, held_out)
    assert shared == alone
    assert [document.name for document in shared[0]] == ["near", "far"]


def test_every_stretch_of_a_shared_out_corpus_loses_its_own(monkeypatch):
    training = [document(str(n), f"{LONG[::-1]} {n}\n\n{LONG if n % 3 == 2 else ''}") for n in range(8)]
    alone = [d.text for d in _all_without_overlaps(training, set(ngrams(LONG)))]
    monkeypatch.setattr("repro.data.dedup.LARGE_CHARACTERS", 0)
    monkeypatch.setattr("repro.data.dedup._STRETCH", 2)
    assert [d.text for d in _all_without_overlaps(training, set(ngrams(LONG)))] == alone
    assert all(LONG not in text for text in alone)


def test_a_source_may_hold_out_another_share():
    documents = [
        Document(source, "wiki", str(i), "text") for source in ("small", "large") for i in range(400)
    ]
    spec = HoldOutSpec(fraction=0.01, salt="s")
    _, held_out = split(documents, spec, fractions={"small": 0.3, "large": None})
    shares = {s: sum(d.source == s for d in held_out) / 400 for s in ("small", "large")}
    assert 0.2 < shares["small"] < 0.4
    assert shares["large"] < 0.05
