"""Makes text uniform before it is compared, counted or tokenized.

Unicode to NFC, one kind of line end, no control or zero-width characters, no trailing blanks, at most one empty
line in a row; prose also loses runs of blanks inside a line and lines of mere rules (-----, =====); code loses
editor and encoding marks in its first lines and its copyright notices, which repeat in every file.

Does not: judge quality, detect languages, or drop personal data (no source here has any).
"""

from __future__ import annotations

import re
import unicodedata

from repro.data.document import Document

#: Documents shorter than this carry no context worth a window.
MIN_CHARACTERS = 24
#: The tokenizer's end-of-document mark; a text that spells it out must not end a document.
END_OF_DOCUMENT = "<|endoftext|>"

_INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028\u2029\u2060\ufeff\u00ad]"
)
_RULE = re.compile(r"^\s*([-=_*~#+])\1{3,}\s*$", re.M)
_BLANKS = re.compile(r"(?<=\S)[ \t]{2,}(?=\S)")
_TRAILING = re.compile(r"[ \t]+$", re.M)
_EMPTY_LINES = re.compile(r"\n{3,}")
_CODE_MARKS = re.compile(r"\A(#!.*\n)?(#.*coding[:=].*\n)?")
_HEAD_COMMENT = re.compile(r"\A\s*(/\*.*?\*/|(?://[^\n]*\n)+)\s*", re.S)
_NOTICE = re.compile(r"copyright|licen[sc]e|all rights reserved", re.I)
_NOTICES = re.compile(r"^#.*(copyright|licen[sc]e|all rights reserved).*\n", re.M | re.I)


def clean_text(text: str, style: str) -> str:
    """`text` made uniform; `style` is a Document's. Returns "" where nothing is left."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _INVISIBLE.sub("", text.replace("\u00a0", " ").replace("\f", "\n"))
    text = text.replace(END_OF_DOCUMENT, "end of text")
    if style == "code":
        text = _NOTICES.sub("", _CODE_MARKS.sub("", text, count=1))
        head = _HEAD_COMMENT.match(text)
        if head and _NOTICE.search(head[0]):
            text = text[head.end() :]
    else:
        text = _BLANKS.sub(" ", _RULE.sub("", text))
    return _EMPTY_LINES.sub("\n\n", _TRAILING.sub("", text)).strip("\n")


def clean(documents: list[Document]) -> list[Document]:
    """The documents with uniform text, without those that are too short or hold undecodable bytes (U+FFFD)."""
    cleaned = (document.with_text(clean_text(document.text, document.style)) for document in documents)
    return [d for d in cleaned if len(d.text) >= MIN_CHARACTERS and "\ufffd" not in d.text]
