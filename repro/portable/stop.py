"""What SIGTERM and SIGINT do: until training can be saved they end the process, from then on they ask it to stop.

Python runs its own handlers in the main thread and between two of its instructions, so not while a library waits for
the other processes of a run. Until then a thread reads the signals, whatever the main thread waits for.

Does not: save anything (trainer.py does, after the step in which `is_asked` became true).
"""

from __future__ import annotations

import os
import signal
import threading

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TOLD = b"stopped before training began: nothing to save; the same command starts it\n"


class StopRequests:
    """The signals of this process, from the moment it is made; one a process, made and used in its main thread.

    Attributes:
        is_asked: a signal came after `start_saving`.
    """

    def __init__(self) -> None:
        self.is_asked = False
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._ask)
        threading.Thread(target=_end_at_a_signal, args=(reading,), daemon=True).start()

    def start_saving(self) -> None:
        """From now on a signal sets `is_asked`; before it the process ends with 128 + the signal's number.

        The thread ends: a forked child would write its own signals into the same pipe.
        """
        signal.set_wakeup_fd(-1)
        os.close(self._writing)

    def _ask(self, number: int, frame: object) -> None:
        self.is_asked = True


def _end_at_a_signal(reading: int) -> None:
    while number := os.read(reading, 1):
        if number[0] in _SIGNALS:
            os.write(2, _TOLD)
            os._exit(128 + number[0])  # tidying up would wait for the main thread
    os.close(reading)
