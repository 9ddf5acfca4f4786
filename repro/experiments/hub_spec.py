"""Sources and tokenizer that come from the Hugging Face hub, as validated records.

A data configuration whose sources are all of kind `hub` is too large for a machine's memory; it is prepared in
shards, one job each (`repro.data.shards`). `options` of such a source is a `HubOptions`, and its tokenizer is a
finished one of the model family, a `PretrainedTokenizerSpec`, not one that is trained on the text.

Does not: reach the hub (`repro.data.hub`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from repro.experiments.record import Record

#: `owner/name`, as the hub spells it.
Repository = Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]


class HubOptions(Record):
    """Which files of a data set are taken, and in how many jobs they are tokenised."""

    repo: Repository
    files: tuple[str, ...] = Field(
        min_length=1, description="globs within the data set, e.g. High-Quality/*.parquet"
    )
    shards: int = Field(
        gt=0,
        le=10_000,  # four digits name one
        description="jobs, and token files, that the source's files are dealt out to",
    )
    column: str = Field(default="text", description="column or JSON key of a document's text")
    revision: str = Field(
        default="main", description="branch, tag or commit; the listing pins it to a commit"
    )
    gated: bool = Field(
        default=False, description="whether its terms have to be accepted before it can be read"
    )


class PretrainedTokenizerSpec(Record):
    """A finished tokenizer.json of the hub."""

    vocab_size: int = Field(
        gt=256, le=1 << 20, description="of the models; the tokenizer may have fewer entries"
    )
    repo: Repository
    revision: str = "main"
    end_of_document: str | None = Field(
        default=None, description="token that ends a document; null = the tokenizer's own eos_token"
    )
