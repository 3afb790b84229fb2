"""Files and folders between this machine and a sandbox.

A folder travels as one tar archive, which ``tar`` packs or unpacks inside. What comes out of a sandbox is hostile: names
are checked, links and special files are left out, every folder is opened without following links, and entries, bytes and
single reads have bounds. Archives wait in temporary files, so memory stays small whatever the size.
"""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from ._errors import DeniedByPolicyError, InvalidArgumentError, NotFoundError, OutputLimitError, SandcellError

#: Entries of one folder, with everything below it.
MAX_ENTRIES = 100_000
#: Bytes that are read at once; a header of an archive that claims more is refused.
_MAX_READ = 1 << 20
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def local_path(name: str, value: Any) -> str:
    """Returns a path of this machine."""
    found = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(found, str):
        raise InvalidArgumentError(f"{name} must be a str or a path, not {type(value).__name__}", "pass a path")
    if not found or "\0" in found:
        raise InvalidArgumentError(f"{name} is {found!r}", "name a file or folder of this machine")
    return found


def local_error(path: str, error: Exception) -> SandcellError:
    """Returns the error for something that this machine refuses."""
    reason = getattr(error, "strerror", None) or str(error)
    kind = NotFoundError if isinstance(error, FileNotFoundError) else InvalidArgumentError
    return kind(f"{path!r} of this machine: {reason}", "check the path, its rights and the free space")


def pack(folder: str, archive: IO[bytes]) -> int:
    """Packs a folder of this machine; returns the number of files. Only links that stay in the folder are taken."""
    files = 0
    top = os.path.realpath(folder)
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entries, (place, folders, names) in enumerate(os.walk(top, onerror=_raise)):
            links = [name for name in folders if os.path.islink(os.path.join(place, name))]
            for name in sorted(names + links):
                _pack_one(tar, top, os.path.join(place, name))
                files += 1
            if place != top:
                info = _plain(os.path.relpath(place, top), 0o755)
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            if entries + files > MAX_ENTRIES:
                raise InvalidArgumentError(f"{folder!r} has more than {MAX_ENTRIES:,} entries", "send its parts one by one")
            # Headers that were written are of no more use; kept, they would grow with the folder.
            tar.members = []  # type: ignore[attr-defined]
    return files


def _raise(error: OSError) -> None:
    raise error


def _plain(name: str, mode: int) -> tarfile.TarInfo:
    """Returns an entry without owner and time of this machine."""
    info = tarfile.TarInfo(name)
    info.mode = mode
    return info


def _pack_one(tar: tarfile.TarFile, top: str, path: str) -> None:
    found = os.lstat(path)
    info = _plain(os.path.relpath(path, top), 0o755 if found.st_mode & 0o100 else 0o644)
    if stat.S_ISLNK(found.st_mode):
        info.type = tarfile.SYMTYPE
        info.linkname = os.readlink(path)
        real = os.path.realpath(path)
        if os.path.isabs(info.linkname) or os.path.commonpath([top, real]) != top:
            raise InvalidArgumentError(
                f"{path!r} is a link that leads out of the folder", "remove it, or put a copy of its target there"
            )
        tar.addfile(info)
    elif stat.S_ISREG(found.st_mode):
        with open_regular(path) as file:
            info.size = os.fstat(file.fileno()).st_size
            tar.addfile(info, file)
    else:
        raise InvalidArgumentError(f"{path!r} is no file, folder or link", "remove it from the folder")


def open_regular(path: str, *, follow: bool = False) -> IO[bytes]:
    """Opens a regular file for reading; anything else, such as a pipe that would block, is refused."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InvalidArgumentError(f"{path!r} is no regular file", "name a file or a folder")
    return file


class _Bounded:
    """Reads an archive; a single read of more than the bound, which only a forged header asks for, is refused."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._file.read(size)


def unpack(archive: IO[bytes], folder: str, max_bytes: int) -> int:
    """Unpacks an archive that a sandbox made; returns the number of files. Nothing is written outside of the folder."""
    os.makedirs(folder, exist_ok=True)
    # The folder itself may be a link: the caller named it.
    top = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    files = total = entries = 0
    try:
        # Errors in headers are raised, not taken for the archive's end.
        with tarfile.open(fileobj=_Bounded(archive), mode="r:", errorlevel=2) as tar:  # type: ignore[call-overload]
            for info in tar:
                entries += 1
                if entries > MAX_ENTRIES:
                    raise OutputLimitError(f"there are more than {MAX_ENTRIES:,} entries", "download parts of the folder")
                parts = _parts(info.name)
                if info.isdir():
                    os.close(_descend(top, parts))
                elif parts and (info.isreg() or info.islnk()):
                    source = tar.extractfile(info)
                    assert source is not None
                    total += _write(top, parts, source, bool(info.mode & 0o100), max_bytes - total, max_bytes)
                    files += 1
    except (tarfile.TarError, RecursionError, KeyError, ValueError, OverflowError, EOFError) as error:
        raise InvalidArgumentError(
            f"the sandbox packed no archive that can be read: {error}", "its tar may have been replaced: use a new sandbox"
        ) from None
    finally:
        os.close(top)
    return files


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise DeniedByPolicyError(
            f"the sandbox packed a file with the name {name!r:.200}, which leads out of the folder",
            "its tar was replaced: treat what it made with care, and use a new sandbox",
        )
    return parts


def _descend(top: int, parts: list[str]) -> int:
    """Opens a folder below another, making what is missing and following no link."""
    place = os.dup(top)
    try:
        for part in parts:
            try:
                os.mkdir(part, dir_fd=place)
            except FileExistsError:
                pass
            below = os.open(part, _FOLDER, dir_fd=place)
            os.close(place)
            place = below
    except BaseException:
        os.close(place)
        raise
    return place


def _write(top: int, parts: list[str], source: IO[bytes], executable: bool, left: int, most: int) -> int:
    place = _descend(top, parts[:-1])
    try:
        try:
            os.unlink(parts[-1], dir_fd=place)  # What was there may be a link or a pipe.
        except FileNotFoundError:
            pass
        mode = 0o777 if executable else 0o666
        descriptor = os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=place)
    finally:
        os.close(place)
    written = 0
    with os.fdopen(descriptor, "wb") as target:
        while data := source.read(_MAX_READ):
            written += len(data)
            if written > left:
                raise OutputLimitError(f"the folder has more than {most:,} bytes", "pass a larger max_bytes")
            target.write(data)
    return written


@contextmanager
def draft(path: str, executable: bool) -> Iterator[IO[bytes]]:
    """Opens a new file, which takes the place of what is at ``path``, also of a link, when all is written."""
    folder, name = os.path.split(os.path.abspath(path))
    if os.path.isdir(path):
        raise InvalidArgumentError(f"{path!r} of this machine is a folder", "name the file that the data goes to")
    os.makedirs(folder, exist_ok=True)
    draft = os.path.join(folder, f".{name[:100]}.{os.urandom(6).hex()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777 if executable else 0o666)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        if os.path.exists(draft):
            os.unlink(draft)
        raise


def spool() -> IO[bytes]:
    """Returns a temporary file without a name."""
    return tempfile.TemporaryFile()
