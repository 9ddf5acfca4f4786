"""The unit that moves through the preparation: a document of one source.

Does not: know how documents are read (`sources`) or what is kept of them (`clean`, `split`, `dedup`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Document:
    """One text with its origin.

    Attributes:
        source: name of the source in the data configuration.
        category: category of the blend.
        name: names the document within its source; the split depends on source and name alone, never on the text.
        text: UTF-8 text.
        style: "prose" | "code" | "generated". Code keeps its indentation; generated text is written from templates,
            so parts of a document repeat by construction and only whole documents are compared.
    """

    source: str
    category: str
    name: str
    text: str
    style: str = "prose"

    @property
    def key(self) -> str:
        """Names the document among all sources."""
        return f"{self.source}/{self.name}"

    def with_text(self, text: str) -> Document:
        """The same document with another text."""
        return replace(self, text=text)
