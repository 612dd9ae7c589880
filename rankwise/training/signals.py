"""Being asked to stop: SIGTERM, Ctrl-C or a closed terminal become a flag that the loop looks at."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from subprocess import Popen
from types import FrameType

#: Launchers pass a Ctrl-C on to processes that the terminal has already sent it to: that is not a second one.
SAME_SECONDS = 2.0


class Interrupted(Exception):
    """The run was asked to stop, has saved its state and can go on later.

    Args:
        number: The signal.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.number = number


class StopFlag:
    """Whether a signal to stop has come, and which."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.since = 0.0

    @property
    def raised(self) -> bool:
        """Whether one has come."""
        return self.number is not None


@contextmanager
def stop_signals(children: Sequence[Popen[bytes]] = ()) -> Iterator[StopFlag]:
    """Turns signals to stop into a flag, so that the step is finished and saved; a second Ctrl-C ends at once.

    Args:
        children: Processes that a signal is passed on to.
    """
    flag, owner = StopFlag(), os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a loader worker, which ends with its parent
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
        numbers = []  # Python lets the main thread alone set handlers
    # nohup ignores SIGHUP, and so shall we.
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
