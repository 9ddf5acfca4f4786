"""A small copy of published corpora as they lie on the hub, and the tokenizer of a model family to go with them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from repro.data.tokenizer import PIECES
from repro.experiments.data_spec import DataSpec

END = "</s>"
VOCAB = 270
WEB, SFT, PAPERS, BASE = "nvidia/Web-v2", "nvidia/SFT-v1", "allenai/Papers", "nvidia/Base"
#: Stands in two files of one source and in another source.
REPEATED = "This sentence is in more than one file."


def sentences(kind: str, count: int) -> list[str]:
    return [
        f"Document {i} of {kind}: {' '.join(f'{kind}{i * j % 97}' for j in range(12))}." for i in range(count)
    ]


def write_parquet(path: Path, texts: list[str | None], *, column: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {"id": pa.array(range(len(texts)), pa.int64()), column: pa.array(texts, pa.string())}
    parquet.write_table(pa.table(rows), path)


def write_lines(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps({"text": text, "source": "s2orc"}) + "\n" for text in texts).encode()
    packed = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    with pa.output_stream(str(path), compression=packed) as file:
        file.write(content)


def write_corpora(root: Path) -> Path:
    web = sentences("web", 600)
    for part in range(5):
        texts = [*web[part::5], REPEATED, f"A literal {END} and <|unused|> stay text {part}.", None, "  "]
        write_parquet(root / WEB / "High-Quality" / f"part_{part:06d}.parquet", texts)
    write_parquet(root / WEB / "High-Quality-Synthetic" / "part_000000.parquet", sentences("never", 50))
    write_parquet(root / SFT / "SFT-Code" / "part_000000.parquet", [*sentences("code", 300), REPEATED])
    write_lines(root / PAPERS / "data" / "train-0.json.gz", sentences("paper", 200))
    write_lines(root / PAPERS / "data" / "train-1.jsonl.zst", sentences("study", 200))
    write_tokenizer(root / BASE)
    return root


def write_tokenizer(folder: Path, *, vocab_size: int = VOCAB) -> None:
    """Byte-level BPE on tiktoken-style pieces with reserved special tokens, as the Nemotron-H family's."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

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
        special_tokens=[AddedToken(token, special=True) for token in ("<unk>", "<s>", END, "<|unused|>")],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences("web", 200) + sentences("code", 200), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": END},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def source(name: str, category: str, **options) -> dict:
    text = {"version": "-", "licence": "-", "origin": "made for a test"}
    return {"name": name, "category": category, "kind": "hub", **text, "options": options}


def spec(**changes) -> DataSpec:
    """Three sources in three parts of categories; `changes` replace top-level keys."""
    blend = {"crawl.high": 3, "sft.code": 1, "academic": 1}
    content = {
        "name": "published",
        "seed": 5,
        "sources": [
            source("web_high", "crawl.high", repo=WEB, files=["High-Quality/*.parquet"], shards=2),
            source("sft_code", "sft.code", repo=SFT, files=["SFT-Code/*.parquet"], shards=1, gated=True),
            source("papers", "academic", repo=PAPERS, files=["data/*.gz", "data/*.zst"], shards=1),
        ],
        "tokenizer": {"vocab_size": VOCAB, "repo": BASE},
        "hold_out": {"fraction": 0.1, "salt": "test"},
        "blends": {"whole": [{"until_fraction": 1.0, "blend": blend}]},
    }
    return DataSpec.model_validate(content | changes)
