"""Owns the commands about regions and their data."""

from __future__ import annotations

import re
from typing import Any

from pywan.cli.commands.of_members import TARGETS, Values, target_of
from pywan.cli.commands.site import coordination_of
from pywan.cli.grammar import Command, GrammarError
from pywan.cli.layout import Sheet, Table
from pywan.cli.output import Result, readable, value_text
from pywan.cli.session import Session
from pywan.config.options import Option
from pywan.config.typed_text import SHORT_TYPES, typed
from pywan.errors import ConfigurationError, ConnectivityError, NotFoundError, PywanError
from pywan.member.answers import IF_NOT_EXISTS

REGION = Option("region", "the region's name", required=True)


KEY_TYPE = (
    Option("key-type", "str (if not given), int, float, bool, json, hex", words=SHORT_TYPES),
    Option("key-class", field="key_type", hidden=True),
)


VALUE_TYPE = (
    Option("value-type", "str (if not given), int, float, bool, json, hex", words=SHORT_TYPES),
    Option("value-class", field="value_type", hidden=True),
)


def describe_region(session: Session, values: Values) -> Result:
    replies = session.ask_members("describe region", values, target_of(values))
    good = [reply for reply in replies if reply["ok"]]
    if not good:
        return Result(data={"members": replies}, errors=[reply["error"] for reply in replies])
    tables: list[Table | Sheet] = []
    for reply in good:
        given = {"type": reply["type"], "gateway-sender-ids": reply["gateway_sender_ids"], **reply["attributes"]}
        lacks = [("lacks", reply["lacks"])] if "lacks" in reply else []
        pairs = [("size", reply["size"]), *lacks, *given.items(), *sorted(reply["stats"].items())]
        tables.append(Sheet(f"Region {reply['name']} on {reply['member']}", readable(pairs)))
    return Result(data={"members": replies}, tables=tables)


def _key(values: Values) -> Any:
    return typed(values["key"], values.pop("key_type", "str"), "--key")


def _holder(session: Session, region: str) -> dict[str, Any]:
    """A member that has the region."""
    members = session.members()
    name = region.lstrip("/")
    for member in members:
        reply = session.ask_member(member, "list regions", {})
        if reply["ok"] and any(view["name"] == name for view in reply["regions"]):
            return member
    raise _nobody_has(session, name)


def _nobody_has(session: Session, name: str) -> PywanError:
    """The error for a region of which no member that answers knows. It tells a region that is nowhere from one whose
    members are silent, or whose buckets wait for members that are gone."""
    told = coordination_of(session)
    if told["problem"]:
        return ConnectivityError(
            f"region {name!r} is on no member that answers, and nobody says who has it: {told['problem']}"
        )
    hosts = [f"{each['name']} ({each['state']})" for each in told["members"] if name in each["regions"]]
    waiting = told.get("waiting_regions", {}).get(name, {"buckets": 0, "waits_for": []})
    words = f"region {name!r}: "
    if hosts:
        words += f"no member that has it answers: {', '.join(hosts)}"
    elif waiting["buckets"]:
        words += "no member that runs has it"
    else:
        return NotFoundError(
            f"region {name!r} is on no member of the site of {session.locator}; `list regions` shows what there is"
        )
    if waiting["waits_for"]:
        who = ", ".join(waiting["waits_for"])
        words += (
            f"; {waiting['buckets']} of its buckets wait for {who}: start them again (start server) in their"
            " folders, or say of one that never comes back: revoke member --name=NAME"
        )
    elif waiting["buckets"]:
        words += f"; {waiting['buckets']} of its buckets wait for a member that stores them: create the region on one"
    return ConnectivityError(f"{words}; `show coordinator` and `list members` show the site")


def _ask_holder(session: Session, op: str, values: Values) -> Values:
    reply = session.ask_member(_holder(session, values["region"]), op, values)
    if not reply["ok"]:
        raise PywanError(reply["error"])
    return reply


def get(session: Session, values: Values) -> Result:
    reply = _ask_holder(session, "get", {"region": values["region"], "key": _key(values)})
    data = {
        "key": values["key"],
        "found": reply["found"],
        "value": reply["value"],
        "value_type": reply["value_type"],
        "member": reply["member"],
    }
    if not reply["found"]:
        return Result(data=data, errors=[f"key {values['key']!r} is not in region {values['region']}"])
    return Result(data=data, lines=[value_text(reply["value"])])


def put(session: Session, values: Values) -> Result:
    value = typed(values["value"], values.pop("value_type", "str"), "--value")
    fields = {"region": values["region"], "key": _key(values), "value": value}
    if "if_not_exists" in values:
        fields["if_not_exists"] = values["if_not_exists"]
    reply = _ask_holder(session, "put", fields)
    return Result(
        data={"key": values["key"], "done": reply["done"], "member": reply["member"]},
        lines=[reply.get("status") or "done"],
    )


def remove(session: Session, values: Values) -> Result:
    everything = values.get("all", "false").lower() == "true"
    if everything == ("key" in values):
        raise GrammarError("remove: give either --key or --all", "remove")
    fields = {"region": values["region"], **({"all": True} if everything else {"key": _key(values)})}
    reply = _ask_holder(session, "remove", fields)
    result = Result(data={"count": reply["count"], "member": reply["member"]})
    if reply["done"]:
        result.lines.append(f"{reply['count']} removed")
    else:
        result.errors.append(f"key {values['key']!r} is not in region {values['region']}")
    return result


def query_size(session: Session, values: Values) -> Result:
    region = values.get("region")
    if "query" in values:
        match = re.fullmatch(r"\s*select\s+count\(\*\)\s+from\s+/?([\w.\-]+)\s*;?\s*", values["query"], re.IGNORECASE)
        if not match:
            raise ConfigurationError(f"query {values['query']!r}: only `select count(*) from /region` is understood")  # noqa: S608
        region = match[1]
    if not region:
        raise GrammarError("query size: --region is required", "query size")
    reply = _ask_holder(session, "query size", {"region": region})
    return Result(
        data={"region": reply["region"], "size": reply["size"], "member": reply["member"]}, lines=[str(reply["size"])]
    )


COMMANDS = (
    Command(
        "describe region",
        "one region",
        describe_region,
        (Option("name", "the region's name", required=True), *TARGETS),
    ),
    Command(
        "get",
        "a value",
        get,
        (REGION, Option("key", "the key", required=True), *KEY_TYPE),
        more="Fails where the key is not there",
    ),
    Command(
        "put",
        "store a value",
        put,
        (
            REGION,
            Option("key", "the key", required=True),
            Option("value", "the value", required=True),
            *KEY_TYPE,
            *VALUE_TYPE,
            IF_NOT_EXISTS,
        ),
    ),
    Command(
        "remove",
        "remove a key, or all",
        remove,
        (REGION, Option("key", "the key"), Option("all", "all keys", flag=True), *KEY_TYPE),
        more="Fails where the key is not there",
    ),
    Command("query size", "how many keys a region holds", query_size, (REGION,)),
    Command(
        "query",
        "select count(*) from /region",
        query_size,
        (Option("query", "the query", required=True),),
        more="And nothing else",
    ),
)
