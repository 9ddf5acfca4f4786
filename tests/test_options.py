"""Wrong options: one line, exit code 2."""

from __future__ import annotations

import importlib

import pytest

from repro.options import OneLineParser, amount, whole, whole_number


def _parser(**options) -> OneLineParser:
    parser = OneLineParser(prog="bench", **options)
    parser.add_argument("--steps", type=whole_number(), default=1)
    parser.add_argument("--warmup", type=whole_number(0), default=0)
    parser.add_argument("--threads", type=whole_number(1, 1024), default=1)
    parser.add_argument("--seconds", type=amount("seconds"), default=1.0)
    return parser


def test_right_numbers_are_taken() -> None:
    options = _parser().parse_args(["--steps", "3", "--warmup", "0", "--threads", "1024", "--seconds", "1e9"])
    assert vars(options) == {"steps": 3, "warmup": 0, "threads": 1024, "seconds": 1e9}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--steps=0", "argument --steps: '0': a whole number from 1 on"),
        ("--steps=-4", "argument --steps: '-4': a whole number from 1 on"),
        ("--steps=2.5", "argument --steps: '2.5': a whole number from 1 on"),
        ("--steps=", "argument --steps: '': a whole number from 1 on"),
        ("--steps=²", "argument --steps: '²': a whole number from 1 on"),
        ("--warmup=-1", "argument --warmup: '-1': a whole number from 0 on"),
        ("--threads=1025", "argument --threads: '1025': a whole number from 1 to 1024"),
        ("--seconds=0", "argument --seconds: '0': seconds, more than 0 and finite"),
        ("--seconds=nan", "argument --seconds: 'nan': seconds, more than 0 and finite"),
        ("--seconds=inf", "argument --seconds: 'inf': seconds, more than 0 and finite"),
        ("--seconds=soon", "argument --seconds: 'soon': seconds, more than 0 and finite"),
        ("--what", "unrecognized arguments: --what"),
    ],
)
@pytest.mark.parametrize(("options", "lead"), [({}, "bench"), ({"lead": "error"}, "error")])
def test_what_is_wrong_is_one_line_and_exit_code_2(words: str, told: str, options, lead, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        _parser(**options).parse_args([words])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{lead}: {told}\n"


def test_a_check_that_fails_is_told_as_a_wrong_option(capsys) -> None:
    parser = _parser()
    with pytest.raises(SystemExit) as ended, parser.telling():
        raise ValueError("--steps 3 is too many for --warmup 0")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "bench: --steps 3 is too many for --warmup 0\n"
    with pytest.raises(RuntimeError), parser.telling():
        raise RuntimeError("something else is no option's fault")


def test_words_that_are_no_such_number_are_told_what_they_have_to_be() -> None:
    assert [whole("0", 0), whole("65535", 1, 65535)] == [0, 65535]
    with pytest.raises(ValueError, match=r"^a whole number from 1 to 65535$"):
        whole("65536", 1, 65535)
    with pytest.raises(ValueError, match=r"^a whole number from 0 on$"):
        whole("two", 0)


@pytest.mark.parametrize(
    ("module", "words", "told"),
    [
        (
            "repro.data.parts",
            "pack folder --out parts --processes 0",
            "--processes: '0': a whole number from 1",
        ),
        (
            "repro.data.parts",
            "pack folder --out parts --max-megabytes -1",
            "--max-megabytes: '-1': MiB, more than 0",
        ),
        (
            "repro.data.__main__",
            "tiny.yaml --out data --threads=-2",
            "--threads: '-2': a whole number from 1",
        ),
        ("repro.cluster.gemm_rates", "--shape 0 128 128", "--shape: '0': a whole number from 1"),
        (
            "repro.cluster.__main__",
            "run.yaml --data d --state s --threads 0",
            "--threads: '0': a whole number from 1",
        ),
        ("repro.evaluate.__main__", "run --evals e.yaml --gpus 0", "--gpus: '0': a whole number from 1"),
    ],
)
def test_every_command_refuses_a_number_that_counts_nothing(
    module: str, words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main(words.split())
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert told in printed
    assert printed.count("\n") == 1
