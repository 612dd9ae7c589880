"""Ctrl-C ends a command with one line and exit code 130."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

CODE = 128 + signal.SIGINT


def handle_ctrl_c() -> None:
    """Sets the handler of a command; where Ctrl-C is ignored, as in a background job, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def handle_sigterm() -> None:
    """SIGTERM raises SystemExit with code 143, so that a command can delete unfinished files."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGTERM, _interrupt)


@contextmanager
def exit_at_once() -> Iterator[None]:
    """Context manager in which Ctrl-C ends the process on the spot.

    For libraries whose C++ code calls Python and aborts on a KeyboardInterrupt. Nothing is cleaned up.
    """
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _interrupt
    if ours:
        signal.signal(signal.SIGINT, _exit)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, _interrupt)


def say_stopped() -> None:
    """Prints "stopped", once for all processes of a machine."""
    if not int(os.environ.get("LOCAL_RANK", "0")):
        os.write(2, b"stopped\n")  # print would fail inside another print


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt or SystemExit, except during imports: libraries catch it there, print it, or abort."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            _exit(number, None)
        frame = frame.f_back
    if number == signal.SIGTERM:
        sys.exit(128 + number)
    raise KeyboardInterrupt


def _exit(number: int, frame: FrameType | None) -> None:
    with suppress(Exception):  # the signal may have come in the middle of a print
        sys.stdout.flush()
    say_stopped()
    os._exit(128 + number)
