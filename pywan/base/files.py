"""Owns how files are opened, read within a limit of bytes, and replaced as a whole, so that a power cut loses neither
file nor name."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

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
        owner: The number of the user to whom it belongs.
        mode: The permission bits.
    """

    data: bytes
    identity: tuple[int, int]
    owner: int
    mode: int


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
        return Read(data, (status.st_dev, status.st_ino), status.st_uid, stat.S_IMODE(status.st_mode))


def read_secret(path: str | os.PathLike[str], limit: int, *, is_public: bool = False) -> bytes:
    """Reads a whole file on which security depends: users, a password, a private key, certificates.

    FileError as for `read_regular`, and as for `check_secret`. No error of either has anything of the content.
    """
    read = read_regular(path, limit)
    check_secret(read, path, is_public=is_public)
    return read.data


def check_secret(read: Read, path: str | os.PathLike[str], *, is_public: bool = False) -> None:
    """Raises FileError if somebody other than this process's user and the superuser can read or write the file.

    The group may read a file of the superuser, as with mode 0640: a superuser gives a service a file in that way. With
    `is_public` everybody may read it, as a certificate, and the group and others may not write it.
    """
    user = os.geteuid()
    if read.owner not in (user, 0):
        raise FileError(
            f"belongs to user {read.owner}, who can change it, and this process is of user {user}: chown {user} {path},"
            f" or run the process as user {read.owner}"
        )
    forbidden = 0o022 if is_public else 0o077 if read.owner == user else 0o027
    if read.mode & forbidden:
        what, bits = ("written", 0o644) if is_public else ("read or written", 0o600)
        raise FileError(f"can be {what} by others (mode {read.mode:04o}): chmod {bits:o} {path}")


def parse_json(data: bytes | str) -> Any:
    """Returns what a JSON text says. ValueError, without any of the text, if it is none or nests too deeply."""
    try:
        return json.loads(data)
    except UnicodeDecodeError:
        raise ValueError("it is not in UTF-8") from None
    except RecursionError:
        raise ValueError("its lists and maps nest too deeply") from None


def file_state(path: str | os.PathLike[str]) -> object:
    """Returns a value that is another one after the file was replaced or changed, or who may read it. It opens
    nothing."""
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode, found.st_uid


def open_own(file: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """Opens a regular file of the program's own. Returns the descriptor. One that is made gets these permission bits:
    by default it is for its owner alone.

    It follows no link, and waits for no pipe or device: OSError says that it is one.
    """
    file = Path(file)
    try:
        descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
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


def sync_folder(path: Path) -> None:
    """Puts on the disk what was created, renamed or removed in the folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Makes the folder and its parents, as far as they are missing.

    The names are on the disk when this returns. Without that, files written and synced in the folder later could be
    lost.
    """
    missing: list[Path] = []
    while not path.is_dir():
        if missing and path.exists():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=mode, exist_ok=True)
        sync_folder(folder.parent)


@contextlib.contextmanager
def replacing(file: Path, mode: int = 0o600, end: str = ".new") -> Iterator[BinaryIO]:
    """Opens a new file, which takes the place of `file` when the block ends. Then the disk has its bytes and its name.

    A crash or a power cut leaves the old file or the new one, whole. So does an error. Until then the new file is
    beside the old one, with `end` behind its name.
    """
    fresh = file.with_name(file.name + end)
    fresh.unlink(missing_ok=True)
    with open(open_own(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        yield out
        out.flush()
        os.fsync(out.fileno())
    os.replace(fresh, file)
    sync_folder(file.parent)


def write_whole(file: Path, data: bytes) -> None:
    """Replaces a file of the program's own, for its owner alone, and makes its folder if need be. See `replacing`."""
    make_folder(file.parent)
    with replacing(file) as out:
        out.write(data)
