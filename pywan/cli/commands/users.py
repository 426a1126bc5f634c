"""Owns the commands for the file of users. A password comes from a terminal or from standard input, never from the
command line, which all users of a machine see."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pywan.base.files import given_path, make_folder, make_private
from pywan.cli.commands.of_members import Values
from pywan.cli.grammar import Command
from pywan.cli.layout import Table
from pywan.cli.output import Result
from pywan.cli.session import Session
from pywan.config.options import Option
from pywan.config.values import to_words
from pywan.errors import ConfigurationError, IllegalStateError, NotFoundError
from pywan.security.passwords import check_password, hash_of
from pywan.security.users import User, Users, check_role, check_user_name, read_users, write_users

FILE = "users.json"
VARIABLE = "PYWAN_SECURITY_USERS_FILE"


def add(session: Session, values: Values) -> Result:
    file, name = _file(values), check_user_name(values["name"], "user add: --name")
    is_certificate = str(values.get("certificate", "false")).lower() == "true"
    make_folder(file.parent, 0o700)
    with _changing(file):
        users = read_users(file) if file.exists() else Users.first()
        if name in users.users:
            raise IllegalStateError(f"user add: user {name!r} is in {file} already; remove it first, or use passwd")
        roles = _roles(values, users)
        write_users(file, users.with_user(name, User(roles, None if is_certificate else hash_of(_password(name)))))
    how = "by its certificate" if is_certificate else "by a password"
    return Result(data={"name": name}, lines=[f"User {name} is in {file}, {how}: {', '.join(roles)}"])


def passwd(session: Session, values: Values) -> Result:
    file, name = _file(values), values["name"]
    with _changing(file):
        users = read_users(file)
        user = _there(users, name, file)
        if user.password is None:
            raise IllegalStateError(f"user passwd: user {name!r} is known by its certificate; remove it and add it")
        write_users(file, users.with_user(name, User(user.roles, hash_of(_password(name)))))
    return Result(data={"name": name}, lines=[f"User {name} has another password; connections with the old one end"])


def remove(session: Session, values: Values) -> Result:
    file, name = _file(values), values["name"]
    with _changing(file):
        users = read_users(file)
        _there(users, name, file)
        write_users(file, users.without(name))
    return Result(data={"name": name}, lines=[f"User {name} is not in {file} any more; its connections end"])


def list_users(session: Session, values: Values) -> Result:
    users = read_users(_file(values))
    found = [
        {"name": name, "known_by": "password" if user.password else "certificate", "roles": list(user.roles)}
        for name, user in sorted(users.users.items())
    ]
    roles = {name: [str(each) for each in has] for name, has in sorted(users.roles.items())}
    return Result(
        data={"users": found, "roles": roles},
        tables=[
            Table(("User", "Known By", "Roles"), [tuple(user.values()) for user in found], "Users"),
            Table(("Role", "Permissions"), list(roles.items()), "Roles"),
        ],
    )


def _file(values: Values) -> Path:
    return given_path(values.get("file") or FILE).absolute()


def _there(users: Users, name: str, file: Path) -> User:
    if name not in users.users:
        raise NotFoundError(f"no user {name!r} in {file}; there are {', '.join(sorted(users.users)[:50]) or 'none'}")
    return users.users[name]


def _roles(values: Values, users: Users) -> tuple[str, ...]:
    roles = tuple(to_words(values["role"], "--role"))
    for role in roles:
        check_role(role, users.roles, "user add: --role")
    if not roles:
        raise ConfigurationError(f"user add: --role names none; there are {', '.join(sorted(users.roles))}")
    return roles


def _password(name: str) -> str:
    """Asks twice at a terminal; else reads the first line of standard input."""
    if not sys.stdin.isatty():
        return check_password(sys.stdin.readline().rstrip("\r\n"), "standard input")
    password = check_password(getpass.getpass(f"Password of {name}: "), "password")
    if getpass.getpass("Again: ") != password:
        raise ConfigurationError("the two passwords differ; nothing was changed")
    return password


@contextlib.contextmanager
def _changing(file: Path) -> Iterator[None]:
    """Lets one command at a time change the file. The lock is a file of its own, since the other one is replaced."""
    lock = file.with_name(f".{file.name}.lock")
    try:
        make_private(lock)
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be changed: {lock.name}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_NAME = Option("name", "the user's name; of a certificate, the common name in it", required=True)
_FILE = Option("file", f"the file of users ({FILE})", variable=VARIABLE)

COMMANDS = (
    Command(
        "user add",
        "a user with a password, or with a certificate",
        add,
        (
            _NAME,
            Option("role", "what it may do: roles of the file, separated by commas", required=True),
            Option("certificate", "it shows a certificate of that name, and no password", flag=True),
            _FILE,
        ),
        more="The password is asked for, or is the first line of standard input. A new file has the roles"
        " [of this table](security.md#users-and-roles)",
    ),
    Command("user passwd", "give a user another password", passwd, (_NAME, _FILE)),
    Command("user remove", "remove a user; its connections end within about 10 s", remove, (_NAME, _FILE)),
    Command("user list", "users with their roles, and roles with their permissions", list_users, (_FILE,)),
)
