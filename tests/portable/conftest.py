"""Prepared data for the frozen segments of small_segment."""

from pathlib import Path

import pytest
from small_segment import write_data


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))
