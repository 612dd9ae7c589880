"""Output streams that survive the loss of their reader."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class LastingStream:
    """A stream whose reader may disappear. Later output is then discarded without an error, which is kept in ``lost``.

    Characters that cannot be encoded, such as lone surrogates in file names, are escaped.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes a text, if possible."""
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
        """Writes texts, if possible."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flushes the stream, if possible."""
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
            os.dup2(nowhere, number)  # also for data still in buffers
            os.close(nowhere)
        except (OSError, ValueError):  # not a system file
            return
        if first and error.errno != errno.EPIPE and number == 1:
            print(f"standard output was closed ({error.strerror}): continuing without it", file=sys.stderr)


@contextmanager
def lasting_output(needed: bool) -> Iterator[None]:
    """Context manager that makes standard output and error survive the loss of their reader.

    If the output is ``needed``, its loss, other than through a reader that stopped reading, leads to exit code 2.
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
