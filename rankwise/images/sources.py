"""Image sources: files, folders, patterns, videos and cameras. This module does not need torch."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.errors import DataError
from rankwise.files.names import escaped
from rankwise.images.reading import IMAGE_ENDINGS

#: File extensions of videos.
VIDEO_ENDINGS = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv"})

_INSTALL = "it needs OpenCV, install it with: pip install opencv-python-headless"


@dataclass(frozen=True)
class Camera:
    """A camera of this machine, numbered from 0."""

    number: int = 0

    def __str__(self) -> str:
        return f"webcam {self.number}"

    @property
    def stem(self) -> str:
        """The base name of output files."""
        return f"webcam{self.number}"


@dataclass(frozen=True)
class Frame:
    """A frame of a video.

    Attributes:
        pixels: RGB, uint8 [H, W, 3].
        number: The index of the frame, from 0.
        rate: Frames per second of the video.
    """

    pixels: np.ndarray
    number: int
    rate: float


def find_images(words: Sequence[str]) -> list[Path]:
    """The image files of files, folders (searched recursively) and patterns such as ``photos/*.jpg``, each once, in
    order.

    Raises:
        DataError: If nothing is found.
    """
    return list(dict.fromkeys(path for word in words for path in _files(word, IMAGE_ENDINGS)))


def find_inputs(words: Sequence[str]) -> list[Path | Camera]:
    """Like :func:`find_images`, with videos, and ``webcam``, ``webcam1`` or ``0`` for cameras."""
    found: dict[Path | Camera, None] = {}
    for word in words:
        camera = re.fullmatch(r"(?:webcam:?)?(\d*)", word)
        if camera is not None and word and not Path(word).exists():
            found[Camera(int(camera[1] or 0))] = None
        else:
            found.update(dict.fromkeys(_files(word, IMAGE_ENDINGS | VIDEO_ENDINGS)))
    return list(found)


def is_video(source: Path | Camera) -> bool:
    """Whether a source has frames."""
    return isinstance(source, Camera) or source.suffix.lower() in VIDEO_ENDINGS


def is_folder(images: Any) -> bool:
    """Whether an argument names several images: a folder or a pattern."""
    if not isinstance(images, str | os.PathLike):
        return False
    path = Path(images)
    return path.is_dir() or (not path.exists() and glob.has_magic(str(path)))


def frames(source: Path | Camera) -> Iterator[Frame]:
    """The frames of a video or camera; a DataError if it cannot be read, or OpenCV is not installed."""
    cv2 = opencv(source)
    capture = cv2.VideoCapture(source.number if isinstance(source, Camera) else str(source))
    try:
        if not capture.isOpened():
            what = "no such camera" if isinstance(source, Camera) else "OpenCV cannot read this video"
            raise DataError(f"{escaped(source)}: {what}")
        rate = capture.get(cv2.CAP_PROP_FPS)
        number = 0
        while True:
            good, pixels = capture.read()
            if not good:
                break
            yield Frame(np.ascontiguousarray(pixels[..., ::-1]), number, rate if 0 < rate < 1000 else 25.0)
            number += 1
        if not number:
            raise DataError(f"{escaped(source)}: OpenCV finds no frames")
    finally:
        capture.release()


def count_frames(source: Path | Camera) -> int | None:
    """The number of frames in the header of a video; None for a camera."""
    if isinstance(source, Camera):
        return None
    cv2 = opencv(source)
    capture = cv2.VideoCapture(str(source))
    try:
        return max(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT))) or None
    finally:
        capture.release()


class VideoWriter:
    """Writes frames to an MP4 file, which gets its final name when it is closed."""

    def __init__(self, path: Path, rate: float) -> None:
        self.path = path
        self.rate = rate
        self._part = path.with_name(f".{path.stem}.part.mp4")
        self._writer: Any = None

    def add(self, pixels: np.ndarray) -> None:
        """Writes a frame, RGB uint8 [H, W, 3]; all frames have the same size."""
        cv2 = opencv(self.path)
        if self._writer is None:
            height, width = pixels.shape[:2]
            code = cv2.VideoWriter_fourcc(*"mp4v")
            self._writer = cv2.VideoWriter(str(self._part), code, self.rate, (width, height))
            if not self._writer.isOpened():
                raise DataError(f"{escaped(self.path)}: OpenCV cannot write this video; use --no-pictures to skip it")
        self._writer.write(np.ascontiguousarray(pixels[..., ::-1]))

    def close(self) -> None:
        """Finishes the file."""
        if self._writer is not None:
            self._writer.release()
            self._part.replace(self.path)
            self._writer = None

    def discard(self) -> None:
        """Deletes the file if it is not finished."""
        if self._writer is not None:
            self._writer.release()
            self._part.unlink(missing_ok=True)


def opencv(source: object) -> Any:
    """Imports OpenCV, which ``source`` needs, or raises an error that says how to install it."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(f"{escaped(source)}: {_INSTALL}") from error
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # failures are our errors
    return cv2


def _files(word: str, endings: Iterable[str]) -> list[Path]:
    path = Path(word)
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = sorted(item for item in path.rglob("*") if item.suffix.lower() in endings and item.is_file())
        if not inside:
            raise DataError(f"{escaped(word)}: no images in this folder (looked for {', '.join(sorted(endings))})")
        return inside
    if path.exists():
        raise DataError(f"{escaped(word)}: it is a pipe or a device, not a regular file")
    names = glob.glob(word, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
    matched = [Path(name) for name in sorted(names) if Path(name).is_file()]
    if not matched:
        raise DataError(f"{escaped(word)}: no such file or folder, and no file matches it as a pattern")
    return matched
