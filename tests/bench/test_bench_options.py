"""What commands that measure refuse."""

from __future__ import annotations

import pytest
import torch

from repro.bench.options import OneLineParser, check_batch, check_gpu, device_named, time_limit, whole_number


def _parser() -> OneLineParser:
    parser = OneLineParser(prog="bench")
    parser.add_argument("--steps", type=whole_number(), default=1)
    parser.add_argument("--warmup", type=whole_number(0), default=0)
    parser.add_argument("--seconds", type=time_limit, default=1.0)
    return parser


def test_right_numbers_are_taken() -> None:
    options = _parser().parse_args(["--steps", "3", "--warmup", "0", "--seconds", "1e9"])
    assert vars(options) == {"steps": 3, "warmup": 0, "seconds": 1e9}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--steps=0", "argument --steps: '0': a whole number from 1 on"),
        ("--steps=-4", "argument --steps: '-4': a whole number from 1 on"),
        ("--steps=2.5", "argument --steps: '2.5': a whole number from 1 on"),
        ("--steps=", "argument --steps: '': a whole number from 1 on"),
        ("--warmup=-1", "argument --warmup: '-1': a whole number from 0 on"),
        ("--seconds=0", "argument --seconds: '0': seconds, more than 0"),
        ("--seconds=nan", "argument --seconds: 'nan': seconds, more than 0"),
        ("--seconds=soon", "argument --seconds: 'soon': seconds, more than 0"),
        ("--what", "unrecognized arguments: --what"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(words: str, told: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        _parser().parse_args([words])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"bench: {told}\n"


def test_a_check_that_fails_is_told_as_a_wrong_option(capsys) -> None:
    parser = _parser()
    with pytest.raises(SystemExit) as ended, parser.telling():
        check_batch(3, [2])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(
        "bench: --batch 3 is no multiple of --micro 2: 1 of its sequences"
    )
    with pytest.raises(RuntimeError), parser.telling():
        raise RuntimeError("something else is no option's fault")


def test_a_batch_of_whole_micro_batches_is_taken() -> None:
    check_batch(128, [16, 32, 64, 128])
    with pytest.raises(
        ValueError, match=r"--batch 128 is no multiple of --micro 48: 32 of .* --batch 144 is one"
    ):
        check_batch(128, [16, 48])


def test_a_device_is_named_as_torch_names_it() -> None:
    assert device_named("cpu") == torch.device("cpu")
    assert device_named("cuda:1") == torch.device("cuda", 1)
    for words in ("foo", "", "meta", "cuda:x", "gpu"):
        with pytest.raises(ValueError, match=f"^--device {words!r}: cpu, cuda or cuda:N$"):
            device_named(words)


def test_what_needs_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA GPU here, and tiles are measured on one"):
        check_gpu("tiles")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_gpu("tiles")
