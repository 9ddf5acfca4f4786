"""Dictionaries, plays and package descriptions become the documents that the rest of the project expects."""

from repro.data.extract import EXTRACTORS


def test_a_wordnet_line_becomes_words_kind_and_gloss(tmp_path):
    path = tmp_path / "data.noun"
    path.write_text(
        "  1 This software and database is being provided to you\n"
        '00001740 03 n 02 entity 0 physical_thing 0 001 @ 00001930 n 0000 | that which exists; "x"  \n'
        "00001741 03 n 01 word 0 000 | an offensive term\n",
        encoding="utf-8",
    )
    assert list(EXTRACTORS["wordnet"](path)) == [
        ("#00001740", 'entity, physical thing (noun): that which exists; "x".')
    ]


def test_a_play_becomes_scenes_with_speakers_on_lines_of_their_own(tmp_path):
    path = tmp_path / "play.md"
    path.write_text("# Play\n\n## ACT I\n\n### SCENE I.\n\n**BERNARDO**  \nWho's there?\n", encoding="utf-8")
    assert [text.strip() for _, text in EXTRACTORS["play"](path)][-1] == "BERNARDO\nWho's there?"


def test_a_package_description_loses_its_mark_up(tmp_path):
    path = tmp_path / "Translation-en.text"
    path.write_text(
        "Package: a\nDescription-md5: 1\nDescription-en: short words\n first line\n .\n second\n\n",
        encoding="utf-8",
    )
    assert list(EXTRACTORS["package"](path)) == [("#a", "short words\n\nfirst line\n\nsecond")]
