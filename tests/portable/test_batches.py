"""Batches read ahead are the ones asked for, whatever is asked for next."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from repro.portable.batches import Batches


class Source:
    """Sample i holds its own number; remembers which samples were read."""

    def __init__(self):
        self.read = []

    def batch(self, first, count):
        self.read.append(first)
        return np.repeat(np.arange(first, first + count)[:, None], 3, axis=1)


def reading_ahead(monkeypatch, source, *, end):
    """As on a GPU, where a second thread reads into pinned memory."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    batches = Batches(source, torch.device("cpu"), stride=4, end=end)
    batches._reader = ThreadPoolExecutor(1)
    return batches


def test_the_last_batch_is_read_ahead_as_the_others_are(monkeypatch):
    source = Source()
    batches = reading_ahead(monkeypatch, source, end=10)
    for first in (0, 4):
        batches.get(first, 2)
    batches._reader.shutdown()
    assert source.read == [0, 4, 8], "samples 8 and 9 end where the run does"


def test_the_next_batch_is_read_before_it_is_asked_for(monkeypatch):
    source = Source()
    batches = reading_ahead(monkeypatch, source, end=12)
    for first in (0, 4, 8):
        assert batches.get(first, 2)[:, 0].tolist() == [first, first + 1]
    batches._reader.shutdown()
    assert source.read == [0, 4, 8], "each batch once, and none from the end on"


class Slow(Source):
    def batch(self, first, count):
        time.sleep(0.05)
        return super().batch(first, count)


def test_only_the_wait_for_samples_counts_as_wait(monkeypatch):
    batches = reading_ahead(monkeypatch, Slow(), end=100)
    batches.get(0, 4)
    assert batches.waited_seconds >= 0.05, "the first batch can't be read ahead"
    batches._ahead[4].result()
    before = batches.waited_seconds
    batches.get(4, 4)
    assert batches.waited_seconds - before < 0.05, "the second one was there"


def test_on_a_cpu_reading_is_the_wait():
    batches = Batches(Slow(), torch.device("cpu"), stride=4, end=100)
    batches.get(0, 4)
    assert batches.waited_seconds >= 0.05


def test_a_wrong_guess_changes_nothing(monkeypatch):
    batches = reading_ahead(monkeypatch, Source(), end=100)
    for first in (0, 40, 44, 8, 0):
        assert batches.get(first, 4)[:, 0].tolist() == list(range(first, first + 4))
    assert len(batches._ahead) == 1, "old guesses are dropped"


def test_a_reading_error_reaches_the_caller(monkeypatch):
    class Broken(Source):
        def batch(self, first, count):
            if first:
                raise OSError("the disk is gone")
            return super().batch(first, count)

    batches = reading_ahead(monkeypatch, Broken(), end=100)
    batches.get(0, 4)
    with pytest.raises(OSError, match="the disk is gone"):
        batches.get(4, 4)
