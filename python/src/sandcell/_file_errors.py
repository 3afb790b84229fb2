"""The built-in exceptions for files, which some frameworks expect in place of sandcell's own."""

from __future__ import annotations

import errno
import os

from ._errors import DeniedByPolicyError, InvalidArgumentError, NotFoundError, SandcellError

#: The end of the server's message, and the error number that stands for it.
_ENDINGS = (
    ("a part of the path is not a folder", errno.ENOTDIR),
    (" is a folder", errno.EISDIR),
    (" not a regular file", errno.EINVAL),
    (" too many symbolic links", errno.ELOOP),
)


def builtin_error(error: SandcellError, path: str) -> Exception:
    """Returns ``FileNotFoundError``, ``IsADirectoryError``, … for an error of ``files``; any other error as it is."""
    number = 0
    if isinstance(error, NotFoundError) and error.message.endswith(" does not exist"):
        number = errno.ENOENT
    elif isinstance(error, DeniedByPolicyError):
        number = errno.EACCES
    elif isinstance(error, InvalidArgumentError):
        number = next((number for ending, number in _ENDINGS if error.message.endswith(ending)), 0)
    return OSError(number, os.strerror(number), path) if number else error
