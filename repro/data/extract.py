"""How a file of a package becomes text.

    text     as it is; .gz is unpacked; e-texts are cut at empty lines into documents of a few kB
    code     as it is, a document a file
    html     the page's main part without navigation, scripts and permalinks
    man      a manual page through `mandoc` (Debian package mandoc)
    dictd    entries of a dictionary of the DICT project (.dict.dz), a few of them a document
    wordnet  glosses of a WordNet data file as "word, word (noun): gloss.", a document each
    play     a play in Markdown, a document a scene: speakers in capitals on a line of their own
    package  descriptions of packages in Debian's Translation files, a document each

Does not: clean (`repro.data.clean`), judge quality, or follow links.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Parts = Iterator[tuple[str, str]]  # (suffix of the document's name, text)

#: Documents made of a long text are about this long: a few windows of the proxy tier.
DOCUMENT_CHARACTERS = 8000

#: What marks a page's main part and what in it is not text, by tag, id, role or class.
_MAIN_TAGS = frozenset(["main", "article"])
_MAIN_NAMES = frozenset(["main", "content", "body", "bodyContent", "main-content"])
_SIDE_TAGS = frozenset(
    ["script", "style", "nav", "header", "footer", "form", "noscript", "button", "svg", "aside"]
)
_SIDE_CLASS = re.compile(
    r"headerlink|anchor|sidebar|\bheader\b|nav(bar|header|footer|igation|-panel)|breadcrumb|toctree|toc\b|related|search"
)
_PARAGRAPHS = frozenset(
    ["blockquote", "dl", *(f"h{n}" for n in range(1, 7)), "ol", "p", "pre", "section", "table", "ul"]
)
_BLOCKS = _PARAGRAPHS | {
    "address",
    "article",
    "br",
    "dd",
    "div",
    "dt",
    "figcaption",
    "hr",
    "li",
    "main",
    "tr",
}
_SPACE = re.compile(r"\s+")
_OVERSTRIKE = re.compile(".\b")


def html_text(page: bytes) -> str:
    """Readable text of an HTML page; paragraphs are parted by an empty line, preformatted text keeps its lines."""
    from lxml import etree, html

    if not page.strip():
        return ""
    # UTF-8 is what every packaged page of today has; a page that says otherwise is decoded as it says.
    declared = re.search(rb"charset=[\"']?([\w-]+)", page[:2048])
    encoding = declared[1].decode() if declared else "utf-8"
    try:
        tree = html.fromstring(page, parser=html.HTMLParser(encoding=encoding))
    except (etree.LxmlError, ValueError, LookupError):
        return ""
    mains = [element for element in tree.iter(*_MAIN_TAGS, "div", "section", "td") if _is_main(element)]
    # The outermost of nested ones comes first; an empty one is a page that names its frame "content".
    root = next((main for main in mains if len(main) or main.text), tree.find(".//body"))
    pieces: list[str] = []
    _collect(tree if root is None else root, pieces, preformatted=False)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", "".join(pieces))).strip()


def _is_main(element: Any) -> bool:
    names = {element.get("id"), element.get("role"), element.get("class")}
    return element.tag in _MAIN_TAGS or bool(names & _MAIN_NAMES)


def _is_side(element: Any) -> bool:
    if element.tag in _SIDE_TAGS:
        return True
    marks = f"{element.get('class', '')} {element.get('id', '')} {element.get('role', '')}"
    return len(marks) > 2 and _SIDE_CLASS.search(marks) is not None


def _collect(element: Any, pieces: list[str], *, preformatted: bool) -> None:
    if not isinstance(element.tag, str) or _is_side(element):  # comments have a function as their tag
        return
    inside = preformatted or element.tag == "pre"
    end = "\n\n" if element.tag in _PARAGRAPHS else "\n" if element.tag in _BLOCKS else ""
    pieces.append(end)
    if element.text:
        pieces.append(element.text if inside else _SPACE.sub(" ", element.text))
    for child in element:
        _collect(child, pieces, preformatted=inside)
        if child.tail:
            pieces.append(child.tail if inside else _SPACE.sub(" ", child.tail))
        if child.tag in ("td", "th"):
            pieces.append(" ")
    pieces.append(end)


def _read(path: Path) -> bytes:
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def _decode(raw: bytes) -> str:
    """UTF-8, else Latin-1, which old texts without a declaration are in."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _in_documents(text: str) -> Parts:
    gathered: list[str] = []
    number = 0
    for block in text.split("\n\n"):
        gathered.append(block)
        if sum(map(len, gathered)) >= DOCUMENT_CHARACTERS:
            yield f"#{number}", "\n\n".join(gathered)
            gathered, number = [], number + 1
    if gathered:
        yield f"#{number}", "\n\n".join(gathered)


def _text(path: Path) -> Parts:
    yield from _in_documents(_decode(_read(path)).replace("\r\n", "\n"))


def _code(path: Path) -> Parts:
    yield "", _decode(_read(path))


def _html(path: Path) -> Parts:
    yield "", html_text(_read(path))


def _man(path: Path) -> Parts:
    if shutil.which("mandoc") is None:
        raise ValueError(
            f"{path.name}: reading manual pages needs the command 'mandoc' (Debian package mandoc)"
        )
    raw = _read(path)
    if raw.lstrip().startswith(b".so "):  # a link to another page
        return
    page = subprocess.run(["mandoc", "-Tutf8", "-Owidth=110"], input=raw, capture_output=True).stdout
    lines = _OVERSTRIKE.sub("", page.decode("utf-8", "replace")).splitlines()
    yield "", "\n".join(line.strip() for line in lines[1:-1])


def _dictd(path: Path) -> Parts:
    text = _decode(_read(path)).replace("[1913 Webster]", "").replace("[PJC]", "")
    entries = re.split(r"\n(?=\S)", text)
    # Leading blanks and line breaks inside an entry are the layout of a terminal, not of the text.
    joined = "\n\n".join(" ".join(entry.split()) for entry in entries if entry.strip())
    yield from _in_documents(joined)


#: Glosses that insult a people or a sex are WordNet's own record of usage, not text to learn from.
_UNFIT_GLOSS = re.compile(r"offensive|slur|disparag|obscen|ethnic|vulgar|derogat|racial", re.I)


def _wordnet(path: Path) -> Parts:
    kind = path.suffix.removeprefix(".")
    for line in _decode(_read(path)).splitlines():
        if line.startswith("  "):  # the licence
            continue
        fields, _, gloss = line.partition(" | ")
        parts = fields.split()
        # Number of words in hexadecimal, then word and sense in turn; "(p)" marks where an adjective may stand.
        words = [re.sub(r"\([a-z]+\)$", "", parts[4 + 2 * i]) for i in range(int(parts[3], 16))]
        if not _UNFIT_GLOSS.search(gloss):
            yield f"#{parts[0]}", f"{', '.join(words).replace('_', ' ')} ({kind}): {gloss.strip()}."


def _play(path: Path) -> Parts:
    for number, scene in enumerate(re.split(r"^###? .*$", _decode(_read(path)), flags=re.M)[1:]):
        yield f"#{number}", re.sub(r"[*_]{1,2}", "", scene).replace("  \n", "\n")


def _package(path: Path) -> Parts:
    for entry in _decode(_read(path)).split("\n\n"):
        name, _, rest = entry.partition("\n")
        lines = rest.splitlines()[1:]  # the checksum
        if lines:
            # A line of one full stop is an empty line; other lines of the long text begin with a blank.
            body = "\n".join("" if line.strip() == "." else line[1:] for line in lines[1:])
            yield f"#{name.split(' ')[-1]}", f"{lines[0].partition(': ')[2]}\n\n{body}"


EXTRACTORS: dict[str, Callable[[Path], Parts]] = {
    "text": _text,
    "code": _code,
    "html": _html,
    "man": _man,
    "dictd": _dictd,
    "wordnet": _wordnet,
    "play": _play,
    "package": _package,
}
