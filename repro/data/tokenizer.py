"""A byte-level BPE tokenizer, trained on training text and saved as a folder that transformers loads offline.

Words are cut as in the tiktoken-style tokenizers of the paper's model family (letters with their leading blank,
single digits, runs of signs, white space), so numbers are spelt digit by digit. Every byte is in the vocabulary, so
any text can be written and read back exactly. Token 0 ends a document; token 1 pads and never occurs in token files.

Does not: reproduce the 131,072-entry tokenizer of the paper's models, which is not named in the paper.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from repro.data.clean import END_OF_DOCUMENT
from repro.data.document import Document
from repro.data.order import stable_key

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PADDING = "<|padding|>"
END_OF_DOCUMENT_ID = 0
PADDING_ID = 1

#: Contractions, words, single digits, signs, line ends, blanks: the pieces that no token may cross.
PIECES = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def train_tokenizer(documents: Sequence[Document], *, vocab_size: int, train_bytes: int) -> Tokenizer:
    """A BPE of exactly `vocab_size` entries.

    Every category gives the same number of bytes (or all it has), so that code and other scripts earn their tokens.

    Raises:
        ValueError: the text is too little for so large a vocabulary.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT, PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(documents, train_bytes), trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"tokenizer.vocab_size: the training text yields only {tokenizer.get_vocab_size()} of {vocab_size}"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder that `transformers.AutoTokenizer.from_pretrained` loads without a network."""
    folder.mkdir(parents=True, exist_ok=True)
    # Not by its own `save`, which raises a bare Exception when the disk is full.
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_DOCUMENT,
        "eos_token": END_OF_DOCUMENT,
        "pad_token": PADDING,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def load_tokenizer(data_dir: str | Path) -> Tokenizer:
    """The tokenizer of a prepared folder, as a `tokenizers.Tokenizer`.

    Raises:
        ValueError: the file is missing or no tokenizer.
    """
    from tokenizers import Tokenizer

    path = Path(data_dir) / "tokenizer" / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{path}: the tokenizer is missing; prepare the data again")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises bare Exception
        raise ValueError(f"{path}: not a tokenizer (truncated or altered): {error}") from error


def _sample(documents: Sequence[Document], train_bytes: int) -> Iterator[str]:
    """Texts of about `train_bytes` in all, the same from each category, in an order fixed by the documents' keys."""
    share = train_bytes // max(1, len({document.category for document in documents}))
    taken: dict[str, int] = {}
    for document in sorted(documents, key=lambda d: (int(stable_key("tokenizer", d.key)), d.key)):
        if taken.get(document.category, 0) < share:
            taken[document.category] = taken.get(document.category, 0) + len(document.text.encode())
            yield document.text
