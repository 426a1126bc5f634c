"""Owns the file of the facts that outlive a member's process: the site's identity, the coordinator's name, the newest
metadata record, and the nonces with which a later incarnation proves to be from the same folder. Only the owner of the
file may read the file."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from pywan.base.files import FileError, parse_json, read_regular, write_whole
from pywan.base.names import check_name
from pywan.coordination import encoding
from pywan.coordination.agent_session import Remembered
from pywan.coordination.proofs import nonces_of
from pywan.errors import ConfigurationError, PywanError

log = logging.getLogger("pywan.agent")

MAX_FILE_BYTES = 64 * 1024


class RememberedFile:
    """`path` None: no fact outlives the process."""

    def __init__(self, member: str, path: Path | None) -> None:
        self._member, self._path = member, path

    def read(self) -> Remembered:
        """Raises ConfigurationError if the file cannot be used."""
        if self._path is None or not self._path.exists():
            return Remembered()
        try:
            value = parse_json(read_regular(self._path, MAX_FILE_BYTES, follow=False).data.decode())
            return Remembered(
                check_name(value["coordinator"], "a coordinator"),
                encoding.identity_of(value["site_identity"]),
                encoding.decision_id_of(value["seen"]),
                encoding.member_ids_of(value["incarnations"]),
                tuple(nonces_of([[each, bytes.fromhex(nonce)] for each, nonce in value.get("nonces", [])]).items()),
                encoding.term_of(value.get("term", 0)),
                None if value.get("standby") is None else encoding.standby_of(value["standby"]),
            )
        except (FileError, OSError, ValueError, KeyError, TypeError, PywanError) as error:
            raise ConfigurationError(
                f"member {self._member}: {self._path} cannot be used: {error}; move it away: the member then joins its"
                " site as a new one"
            ) from None

    def write(self, remembered: Remembered) -> None:
        """Keeps the facts for the report of a later incarnation to the coordinator."""
        if self._path is None:
            return
        value = {
            "coordinator": remembered.coordinator,
            "site_identity": remembered.site_identity,
            "seen": encoding.plain_decision_id(remembered.seen),
            "term": remembered.term,
            "standby": encoding.plain_standby(remembered.standby),
            "incarnations": list(remembered.incarnations),
            "nonces": [[each, nonce.hex()] for each, nonce in remembered.nonces],
        }
        try:
            write_whole(self._path, json.dumps(value).encode())
        except OSError as error:
            log.error(
                "member %s: %s cannot be written: %s; if the coordinator loses its file, this member cannot report the"
                " loss",
                self._member,
                self._path,
                error.strerror,
            )
