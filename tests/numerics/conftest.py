"""What tests of `repro quantize` share."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def save(tmp_path):
    """save(array, name): the array as a .npy file, and its path."""

    def save_array(array, name="in.npy"):
        np.save(tmp_path / name, array)
        return tmp_path / name

    return save_array
