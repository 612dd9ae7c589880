"""Output that goes on when nobody listens any more."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class LastingStream:
    """A stream whose reader may go away: what is written from then on goes nowhere, and no error is raised.

    Characters that its encoding lacks, such as lone surrogates in names of files, are escaped.

    Args:
        stream: The stream.

    Attributes:
        lost: Why it could not be written to, if so.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes a text, as far as that is possible."""
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding or "ascii"
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except OSError as error:
            self._lose(error)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Writes texts, as far as that is possible."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Passes on what was written, as far as that is possible."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        first = self.lost is None
        self.lost = self.lost or error
        try:
            number = self._stream.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)  # also for what is still in buffers
            os.close(nowhere)
        except (OSError, ValueError):  # not a file of the system
            return
        if first and error.errno != errno.EPIPE and number == 1:
            print(f"standard output is gone ({error.strerror}): going on without it", file=sys.stderr)


@contextmanager
def lasting_output(needed: bool) -> Iterator[None]:
    """Makes standard output and error lasting while inside.

    Args:
        needed: Whether output that was lost, other than by a reader that had enough of it, ends with exit code 2.
    """
    before = sys.stdout, sys.stderr
    streams = [None if stream is None else LastingStream(stream) for stream in before]
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        for stream in streams:
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before
    output = streams[0]
    if needed and output is not None and output.lost and output.lost.errno != errno.EPIPE:
        sys.exit(2)
