"""The fast encoder gives the tokenizer's ids, id for id, or leaves the work to the tokenizer."""

import json
import random
import re

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from repro.data import encode
from repro.data.clean import END_OF_DOCUMENT
from repro.data.document import Document
from repro.data.encode import Encoder, cut
from repro.data.tokenizer import PADDING, PADDING_ID, PIECES, train_tokenizer

WORDS = {
    "english": "It's the whale's 1,024 ships; they'll SAIL and we've won, I'd say 'tis so!",
    "german": "Größe, Straße und Übermut tät selten gut: 3,5 %",
    "greek": "Ὀδυσσεὺς πολύτροπος σοφός",
    "russian": "Вопрос о собаках, котах и ёлках № 7",
    "arabic": "السلام عليكم ورحمة الله ١٢٣",
    "hindi": "नमस्ते दुनिया क्षत्रिय १२",
    "thai": "สวัสดีชาวโลก ๔๒",
    "chinese": "床前明月光，疑是地上霜。一二三",
    "japanese": "吾輩は猫である。名前はまだ無い。ｶﾀｶﾅ",
    "korean": "안녕하세요 세계",
    "emoji": "👩‍👩‍👧 ❤️ 🇩🇪 \U0001f9d1\U0001f3fd",
    "code": "if (x[i] != 0x1F) {\n\t\treturn ~x->y++; // 100%\n    }\r\n\r\n#define A  B",
    "odd": "e\u0301 \u00a0\u3000\u2028 \u1e9e ſ 'ſ K \x1c\x1f\x85 ½ Ⅷ ᾳ \u200d \ufeff \U0010fffd",
}
RUNS = (" ", "  ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u3000", " " * 40, "\n" * 17, "-" * 30, "'", "1", "")


def text(rng: random.Random, length: int) -> str:
    pieces: list[str] = []
    while sum(map(len, pieces)) < length:
        words = rng.choice(list(WORDS.values()))
        start = rng.randrange(len(words))
        pieces += [words[start : start + rng.randrange(1, 30)], rng.choice(RUNS)]
    return "".join(pieces)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    rng = random.Random(0)
    documents = [Document("s", "crawl", str(i), text(rng, 1500)) for i in range(100)]
    return train_tokenizer(documents, vocab_size=1500, train_bytes=10**6)


def changed(tokenizer: Tokenizer, change) -> Tokenizer:
    """A copy whose tokenizer.json went through `change`."""
    content = json.loads(tokenizer.to_str())
    change(content)
    return Tokenizer.from_str(json.dumps(content))


def assert_same_ids(tokenizer: Tokenizer, texts: list[str]) -> None:
    encoder = Encoder(tokenizer)
    expected = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    for given, ids, wanted in zip(texts, encoder.encode(texts), expected, strict=True):
        assert ids.tolist() == wanted, f"other ids for {given[:200]!r}"


@pytest.fixture
def no_tokenizer(monkeypatch):
    """Fails where documents go to the slow encoder."""

    def refuse(self, texts):
        assert not texts, f"not encoded by tiktoken: {texts[0][:80]!r}"
        return []

    monkeypatch.setattr(Encoder, "_slowly", refuse)


def test_documents_of_many_scripts_get_the_tokenizers_ids(tokenizer, no_tokenizer):
    rng = random.Random(1)
    assert Encoder(tokenizer).name == "tiktoken"
    assert_same_ids(
        tokenizer, ["", *WORDS.values(), *(text(rng, rng.randrange(1, 6000)) for _ in range(300))]
    )


def test_both_libraries_cut_alike_around_every_character():
    """A byte-pair encoding that joins a/b/!/' with any neighbouring byte shows where pieces end."""
    letters = {byte: letter for letter, byte in encode._byte_of_letter().items()}
    vocab = {letters[byte]: byte for byte in range(256)}
    merges = []
    for fixed in "ab!'lrve":
        for left, right in [(fixed, x) for x in letters.values()] + [(x, fixed) for x in letters.values()]:
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
    from tokenizers import models

    probe = Tokenizer(models.BPE(vocab, merges))
    probe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    # All of the scripts, and samples of the large uniform ranges (ideographs, syllables, private use).
    points = [*range(0x3400), *range(0x3400, 0xA000, 97), *range(0xA000, 0xAC00), *range(0xAC00, 0xD800, 97)]
    points += [*range(0xE000, 0xF900, 97), *range(0xF900, 0x12600), *range(0x16000, 0x17000)]
    points += [*range(0x1B000, 0x20000), *range(0x2FF00, 0x31500, 97), *range(0xE0000, 0xE0200)]
    around = ("a{}b", "!{}!", "'{}a", "'{}ea", "'r{}a", "'l{}a", "'{}la")
    texts = ["\n".join(form.format(chr(point)) for form in around) for point in points]
    # Lines are apart: no piece reaches from the end of one line into the next.
    batches = ["\n".join(texts[at : at + 256]) for at in range(0, len(texts), 256)]
    assert_same_ids(probe, batches)


def test_long_documents_are_cut_where_pieces_end_anyway(tokenizer, no_tokenizer, monkeypatch):
    monkeypatch.setattr(encode, "LONG", 50)
    rng = random.Random(2)
    texts = [text(rng, 5000).replace("\u3000", " ") for _ in range(60)]
    for given in texts:
        parts = cut(given)
        assert "".join(parts) == given
        assert len(parts) > 10
        whole = [e for e, _ in tokenizer.pre_tokenizer.pre_tokenize_str(given)]
        assert [e for p in parts for e, _ in tokenizer.pre_tokenizer.pre_tokenize_str(p)] == whole
    monkeypatch.setattr(encode, "LONG", 600)
    assert_same_ids(tokenizer, texts)


@pytest.mark.parametrize("run", [" ", "\n", "\t ", "a", "文", "\u3000"])
def test_a_run_without_a_place_to_cut_goes_to_the_tokenizer(tokenizer, run, monkeypatch):
    monkeypatch.setattr(encode, "LONG", 100)
    slow: list[str] = []
    inherited = Encoder._slowly
    monkeypatch.setattr(Encoder, "_slowly", lambda self, t: slow.extend(t) or inherited(self, t))
    long = f"before {run * 300} after"
    assert_same_ids(tokenizer, ["short", long, "x" + run * 90 + "y"])
    assert slow == [long]


def test_texts_of_special_tokens_are_treated_as_the_tokenizer_does(tokenizer):
    rng = random.Random(3)
    texts = [f"{text(rng, 40)}{rng.choice((PADDING, END_OF_DOCUMENT))}{text(rng, 40)}" for _ in range(40)]
    assert_same_ids(tokenizer, [*texts, f"a  {PADDING}  b", "<|pad", f"<|{PADDING}|>"])
    assert PADDING_ID in Encoder(tokenizer).encode([f"a {PADDING} b"])[0]
    as_text = Tokenizer.from_str(tokenizer.to_str())
    as_text.encode_special_tokens = True
    assert_same_ids(as_text, texts)
    assert PADDING_ID not in Encoder(as_text).encode([f"a {PADDING} b"])[0]
    as_text.add_tokens([AddedToken("whale", special=False)])
    assert_same_ids(as_text, [*texts, "the whales swim"])


def _cut_otherwise(content: dict) -> None:
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = PIECES.replace(
        r"\p{N}", r"\p{N}{1,3}", 1
    )


def _reorder(content: dict) -> None:
    merges = content["model"]["merges"]
    merges[3], merges[4] = merges[4], merges[3]


def _second_pair(content: dict) -> None:
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    for left, right in merges:
        other = [(left + right)[:at] for at in range(1, len(left + right)) if at != len(left)]
        if other and other[0] in vocab and (left + right)[len(other[0]) :] in vocab:
            merges.append([other[0], (left + right)[len(other[0]) :]])
            return
    raise AssertionError("no entry with a second pair")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_cut_otherwise, "other pieces"),
        (_reorder, "order of its pairs|another pair than its own"),
        (_second_pair, "comes from two pairs"),
        (lambda c: c.update(normalizer={"type": "NFC"}), "normalizer"),
        (lambda c: c["model"].update(ignore_merges=True), "ignore_merges"),
        (lambda c: c["model"].update(byte_fallback=True), "byte_fallback"),
    ],
)
def test_a_tokenizer_that_ranks_cannot_express_encodes_itself(tokenizer, change, reason):
    other = changed(tokenizer, change)
    assert re.search(f"tokenizers, .*({reason})", Encoder(other).name), Encoder(other).name
    assert_same_ids(other, list(WORDS.values()))


def test_a_tokenizer_with_truncation_encodes_itself(tokenizer):
    other = Tokenizer.from_str(tokenizer.to_str())
    other.enable_truncation(5)
    other.normalizer = normalizers.NFC()
    assert_same_ids(other, list(WORDS.values()))
    assert np.all([len(ids) <= 5 for ids in Encoder(other).encode(list(WORDS.values()))])
