"""Turns SIGTERM, Ctrl-C or a closed terminal into a flag that the training loop checks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from subprocess import Popen
from types import FrameType

#: Launchers forward a Ctrl-C that the terminal has already sent to all processes: this is not a second Ctrl-C.
SAME_SECONDS = 2.0


class Interrupted(Exception):
    """The run was stopped by a signal, has saved its state and can be resumed."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.number = number


class StopFlag:
    """Whether a stop signal was received, and which one."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.since = 0.0

    @property
    def raised(self) -> bool:
        """Whether a signal was received."""
        return self.number is not None


@contextmanager
def stop_signals(children: Sequence[Popen[bytes]] = ()) -> Iterator[StopFlag]:
    """Turns stop signals into a flag, so that the step can finish and be saved. A second Ctrl-C exits at once.

    The signal is forwarded to the children.
    """
    flag, owner = StopFlag(), os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a loader worker, which ends with its parent
            if number == signal.SIGTERM and flag.raised:  # the parent waits for it, and it for another that has died
                os._exit(128 + number)
            flag.number = number if number == signal.SIGTERM else flag.number
            return
        now = time.monotonic()
        if flag.raised:
            if number == signal.SIGINT and now - flag.since > SAME_SECONDS:
                raise KeyboardInterrupt
            return
        flag.number, flag.since = number, now
        for child in children:
            child.send_signal(number)

    names = [name for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    if threading.current_thread() is not threading.main_thread():
        numbers = []  # only the main thread can set handlers
    # Under nohup, SIGHUP stays ignored.
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
