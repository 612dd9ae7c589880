"""Finds files by names from annotation files, without ever leaving the dataset folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from urllib.parse import unquote

from rankwise.images.reading import IMAGE_ENDINGS

#: Most folders of a name that are looked for one after the other.
_DEEPEST = 32


class Folder:
    """The folder of a dataset; directory listings are cached.

    A name leads out if it is absolute, goes above the folder with ``..``, or is a link to elsewhere. The folder itself
    and its image folders may be links, because the user made them; other names come with the data.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._absolute_root = _absolute(root)
        self._real_root = os.path.realpath(root)
        self._listings: dict[str, dict[str, bool]] = {}

    def relative(self, path: Path) -> str:
        """A path relative to the folder, for messages."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return str(path)

    def inside(self, path: Path) -> Path | None:
        """The path below the root; None if it leads out."""
        try:
            ways = ((_absolute(path), self._absolute_root), (os.path.realpath(path), self._real_root))
        except ValueError:  # an invalid file name
            return None
        for target, root in ways:
            if _within(target, root):
                return self.root / os.path.relpath(target, root)
        return None

    def leads_out(self, name: str, base: Path | None = None) -> bool:
        """Whether a name, relative to ``base`` or the root, leads out of the folder."""
        base = base or self.root
        if self.climbs_out(name, base):
            return True
        plain = _plain(name)
        # After a link, only the real path tells where .. leads.
        if ".." not in PurePosixPath(plain).parts and not self._linked(_absolute(base / plain)):
            return False
        try:
            real = os.path.realpath(base / plain)
        except ValueError:  # an invalid file name
            return True
        return not _within(real, os.path.realpath(base)) and not _within(real, self._real_root)

    def climbs_out(self, name: str, base: Path | None = None) -> bool:
        """Whether a name leads out by itself, ignoring links."""
        plain = _plain(name)
        if PurePosixPath(plain).is_absolute() or PureWindowsPath(name).drive:
            return True
        base = base or self.root
        path = _absolute(base / plain)
        return not _within(path, _absolute(base)) and not _within(path, self._absolute_root)

    def find(self, name: str, base: Path) -> Path | None:
        """The file of this name below ``base``, or None; the name must not lead out."""
        path = base / _plain(name)
        return path if path.name in self._listing(_absolute(path.parent)) else None

    def locate(self, name: str, base: Path) -> Path | None:
        """The file of this name below ``base`` or, for an absolute name, in the folder; None if it is not there."""
        if _is_absolute(name):
            path = self.inside(Path(name))
            usable = path is not None and not self.leads_out(self.relative(path))
            return self.find(path.name, path.parent) if usable and path is not None else None
        return None if self.leads_out(name, base) else self.find(name, base)

    def locate_by_end(self, name: str, base: Path) -> Path | None:
        """The file whose path ends like this name, longest match first: for names from another machine.

        Exports may name images by a folder of the server, a URL, or a folder that is not in the archive.
        """
        for end in path_ends(name):
            for folder in dict.fromkeys((base, self.root)):
                if (path := self.locate(end, folder)) is not None:
                    return path
        return None

    def images(self, base: Path) -> list[Path]:
        """All image files below a folder, sorted by name; links to folders are not followed."""
        found = []
        for folder, folders, files in os.walk(base):
            folders.sort()
            found += [Path(folder, file) for file in files]
        return sorted(filter(is_image, found))

    def _listing(self, folder: str) -> dict[str, bool]:
        """The names in a folder, and whether each is a link."""
        if folder not in self._listings:
            try:
                with os.scandir(folder) as entries:
                    self._listings[folder] = {entry.name: entry.is_symlink() for entry in entries}
            except (OSError, ValueError):  # ValueError: an invalid file name
                self._listings[folder] = {}
        return self._listings[folder]

    def _linked(self, path: str) -> bool:
        """Whether any part of the path below the root is a link."""
        while len(path) > len(self._absolute_root):
            parent, name = os.path.split(path)
            if parent == path or self._listing(parent).get(name, False):
                return True
            path = parent
        return False


def _plain(name: str) -> str:
    """A name with the path separators of this system; Windows tools write backslashes."""
    return name.replace("\\", "/")


def _is_absolute(name: str) -> bool:
    return PurePosixPath(_plain(name)).is_absolute() or bool(PureWindowsPath(name).drive)


def path_ends(name: str) -> Iterator[str]:
    """The name without its first folder, without its first two, and so on; nothing if it contains ``..``.

    Only the last folders of a very deep name count, because each end is searched for.
    """
    if "?d=" in name:  # files of Label Studio that were not uploaded
        name = name.partition("?d=")[2]
    if "://" in name:
        name = name.partition("://")[2].partition("?")[0]
    parts = [part for part in _plain(unquote(name)).split("/") if part not in ("", ".")][-_DEEPEST:]
    while parts and (parts[0] == ".." or parts[0].endswith(":")):
        parts = parts[1:]
    if ".." not in parts and "\0" not in name:
        yield from ("/".join(parts[start:]) for start in range(len(parts)))


def _absolute(path: Path) -> str:
    """The absolute path without ``..``."""
    return os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def folders(home: Path) -> list[Path]:
    """The subfolders of a folder, sorted, without hidden ones."""
    try:
        with os.scandir(home) as entries:
            return sorted(home / entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


def is_image(path: Path) -> bool:
    """Whether a file name is that of an image."""
    return path.suffix.lower() in IMAGE_ENDINGS


def has_images(folder: Path) -> bool:
    """Whether a folder contains images."""
    return folder.is_dir() and any(is_image(path) for path in folder.iterdir())
