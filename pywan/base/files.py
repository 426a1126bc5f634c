"""Owns how files are opened, read within a limit of bytes, and replaced as a whole."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

from pywan.base.names import quoted
from pywan.errors import ConfigurationError


class FileError(Exception):
    """The reason why a file was not read. The text continues a sentence that begins with the file's name."""


def given_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path that a user wrote, with `~` replaced by a home. ConfigurationError if no file can have that
    name."""
    try:
        usable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise ConfigurationError(f"{quoted(os.fspath(path))} is no name that a file can have")
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise ConfigurationError(
            f"{quoted(expanded)}: that user has no home here; for a file of that name write ./{quoted(expanded)[1:-1]}"
        )
    return Path(expanded)


class Read(NamedTuple):
    """What was read from a file.

    Attributes:
        data: The bytes of the file.
        identity: Its device and number. They are the same under every name of the file.
    """

    data: bytes
    identity: tuple[int, int]


def read_regular(path: str | os.PathLike[str], limit: int, *, follow: bool = True) -> Read:
    """Reads a whole file.

    FileError if it is not a regular file (a FIFO or a device could make the caller wait for ever), if it has more than
    `limit` bytes, or if it cannot be read. With `follow` false, also if it is a symbolic link.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP and Path(path).is_symlink():
            raise FileError(
                f"is a symbolic link, which is not followed; name the file itself, {os.path.realpath(path)}"
            ) from None
        raise FileError(f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FileError(f"cannot be read: {error}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise FileError("is not a regular file")
    with open(descriptor, "rb") as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise FileError(f"cannot be read: {error.strerror}") from None
        if len(data) > limit:
            raise FileError(f"has more than {limit} bytes, the most that is read")
        return Read(data, (status.st_dev, status.st_ino))


def open_own(file: str | os.PathLike[str], flags: int) -> int:
    """Opens a regular file of the program's own, for its owner alone. Returns the descriptor.

    It follows no link, and waits for no pipe or device: OSError says that it is one.
    """
    file = Path(file)
    try:
        descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EEXIST) and file.is_symlink():
            raise OSError(errno.ELOOP, f"{file.name} in it is a symbolic link, which is not followed") from None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"{file.name} in it is no regular file")


def make_private(file: str | os.PathLike[str]) -> None:
    """Makes a regular file of the program's own, if there is none, and takes it away from everybody but its owner.

    OSError as for `open_own`.
    """
    descriptor = open_own(file, os.O_RDWR | os.O_CREAT)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != 0o600:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def write_whole(file: Path, data: bytes) -> None:
    """Replaces a file, so that a crash leaves the old one or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(file.name + ".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, file)
