"""A full disk, in one line that names the file or folder. Not here: making sure beforehand that there is room."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Raises ValueError naming the file, or `folder` where the system does not say which, when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise ValueError(
            f"{error.filename or folder}: the disk is full; the data is not complete. Make room and start the same "
            "command again"
        ) from error
