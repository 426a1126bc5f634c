"""Owns the file of users: its form, how it is read and checked, and how it is replaced."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pywan.base.files import FileError, parse_json, read_secret, write_whole
from pywan.base.names import printable, quoted
from pywan.errors import ConfigurationError
from pywan.security.passwords import is_hash
from pywan.security.permissions import Permission

FILE_BYTES_MAX = 8 << 20
USERS_MAX = 20_000
ROLES_MAX = 1_000
PERMISSIONS_MAX = 1_000  # Of one role.
NAME_CHARACTERS_MAX = 255

# A new file has these. They can be changed there.
FIRST_ROLES: Mapping[str, tuple[str, ...]] = {
    "admin": ("*",),
    "gateway": ("DATA:WRITE",),
    "member": ("*",),
    "operator": ("CLUSTER:READ", "CLUSTER:WRITE", "CLUSTER:MANAGE", "DATA:MANAGE"),
    "reader": ("CLUSTER:READ", "DATA:READ"),
    "site": ("CLUSTER:READ",),
    "writer": ("CLUSTER:READ", "DATA:READ", "DATA:WRITE"),
}


@dataclass(frozen=True, slots=True)
class User:
    """One user. `password`: what is kept of it; None: the name is that of a certificate."""

    roles: tuple[str, ...]
    password: str | None = field(repr=False)

    @property
    def proof(self) -> str:
        """Another one with each password. It tells nothing of it."""
        return hashlib.sha256((self.password or "certificate").encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Users:
    """What a file says. It is never changed; `with_...` and `without` return another one."""

    users: Mapping[str, User]
    roles: Mapping[str, tuple[Permission, ...]]

    @classmethod
    def first(cls) -> Users:
        """Returns what a new file says."""
        roles = {name: tuple(Permission.of(each, name) for each in has) for name, has in FIRST_ROLES.items()}
        return cls({}, roles)

    def with_user(self, name: str, user: User) -> Users:
        return Users({**self.users, name: user}, self.roles)

    def without(self, name: str) -> Users:
        return Users({each: user for each, user in self.users.items() if each != name}, self.roles)

    def may(self, user: User, wanted: Permission) -> bool:
        """Returns whether a user of this file may do what needs `wanted`."""
        return any(has.covers(wanted) for has in self._permissions_of(user))

    def may_in_some_region(self, user: User, wanted: Permission) -> bool:
        """Returns whether a user of this file may do what needs `wanted` in one region at least."""
        return any(has.covers(replace(wanted, region=has.region)) for has in self._permissions_of(user))

    def _permissions_of(self, user: User) -> Iterator[Permission]:
        return (has for role in user.roles for has in self.roles[role])


_NO_NAME = f"no name of a user or role: it has 1 to {NAME_CHARACTERS_MAX} characters that can be shown"


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS_MAX and printable(name) == name


def check_user_name(name: Any, what: str) -> str:
    """Returns the name. ConfigurationError if no user can have it."""
    if not _is_name(name):
        raise ConfigurationError(f"{what}: {quoted(name)} is {_NO_NAME}")
    return str(name)


def read_users(file: Path) -> Users:
    """Reads the file. ConfigurationError names the file, and says which of its roles or users is wrong by its number:
    the file may be another one with secrets, so nothing of it is told."""
    what = f"security-users-file {file}"
    try:
        data = read_secret(file, FILE_BYTES_MAX)
    except FileError as error:
        raise ConfigurationError(f"{what} {error}; `user add` makes such a file") from None
    try:
        told = parse_json(data)
    except ValueError as error:
        raise ConfigurationError(f"{what} is no JSON that can be read: {error}") from None
    if (
        not isinstance(told, dict)
        or set(told) != {"roles", "users"}
        or not all(isinstance(each, dict) for each in told.values())
    ):
        raise ConfigurationError(f"{what} is no map with `roles` and `users`")
    roles, users = told["roles"], told["users"]
    if len(roles) > ROLES_MAX or len(users) > USERS_MAX:
        raise ConfigurationError(f"{what} has more than {ROLES_MAX} roles or {USERS_MAX} users")
    read_roles = {
        name: _permissions(name, has, f"{what}: role {number}") for number, (name, has) in enumerate(roles.items(), 1)
    }
    return Users(
        {
            name: _user(name, user, read_roles, f"{what}: user {number}")
            for number, (name, user) in enumerate(users.items(), 1)
        },
        read_roles,
    )


def _check_name(name: Any, what: str) -> None:
    if not _is_name(name):
        raise ConfigurationError(f"{what} has {_NO_NAME}")


def _permissions(role: str, has: Any, what: str) -> tuple[Permission, ...]:
    _check_name(role, what)
    if not isinstance(has, list) or len(has) > PERMISSIONS_MAX:
        raise ConfigurationError(f"{what} is no list of at most {PERMISSIONS_MAX} permissions")
    return tuple(Permission.of(each, f"{what}: permission {number}") for number, each in enumerate(has, 1))


def _user(name: str, told: Any, roles: Mapping[str, Any], what: str) -> User:
    _check_name(name, what)
    if not isinstance(told, dict) or set(told) not in ({"roles", "password"}, {"roles", "certificate"}):
        raise ConfigurationError(f"{what} is no map with `roles`, and `password` or `certificate`")
    has = told["roles"]
    if not isinstance(has, list) or not all(isinstance(role, str) for role in has):
        raise ConfigurationError(f"{what}: `roles` is no list of names")
    for number, role in enumerate(has, 1):
        if role not in roles:
            raise ConfigurationError(f"{what}: there is no role as the one of number {number}")
    if "certificate" in told:
        if told["certificate"] is not True:
            raise ConfigurationError(f"{what}: `certificate` can be true only; leave the user out otherwise")
        return User(tuple(has), None)
    if not is_hash(told["password"]):
        raise ConfigurationError(f"{what}: `password` is not what `user passwd` writes; set it by that")
    return User(tuple(has), told["password"])


def check_role(role: str, roles: Mapping[str, Any], what: str) -> None:
    """Raises ConfigurationError if there is no such role."""
    if role not in roles:
        raise ConfigurationError(f"{what}: no role {quoted(role)}; there are {', '.join(sorted(roles)) or 'none'}")


def write_users(file: Path, users: Users) -> None:
    """Replaces the file as a whole, for its owner alone. ConfigurationError if it cannot be written."""
    told = {
        "roles": {name: [str(each) for each in has] for name, has in sorted(users.roles.items())},
        "users": {
            name: {
                "roles": list(user.roles),
                **({"certificate": True} if user.password is None else {"password": user.password}),
            }
            for name, user in sorted(users.users.items())
        },
    }
    try:
        write_whole(file, (json.dumps(told, indent=1) + "\n").encode())
    except OSError as error:
        raise ConfigurationError(f"security-users-file {file} cannot be written: {error.strerror}") from None


__all__ = ["FIRST_ROLES", "User", "Users", "check_role", "check_user_name", "read_users", "write_users"]
