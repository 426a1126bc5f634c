"""A member in a process of its own, for tests of calls: it is primary of all of region "r", and ends with its input.

python calls_member.py NAME ID SITE BUCKETS CALLER ID PORT: tells its port. The caller is in its view, and is asked at
its port whether connections are its own.
"""

from __future__ import annotations

import sys

from pywan import _core
from pywan.base.addresses import Address
from pywan.calls.server import CallServer
from pywan.coordination.tables import Incarnation
from pywan.testing.processes import tell
from pywan.transport.control import ControlServer
from pywan.transport.opening_questions import OpeningQuestions


def main(name: str, member_id: str, site: str, buckets: str, caller: str, caller_id: str, caller_port: str) -> None:
    region = _core.RegionCore("r", _core.Clock(), site=1, member=int(member_id), buckets=int(buckets))
    questions = OpeningQuestions(lambda _: Address("127.0.0.1", int(caller_port)))
    calls = CallServer(Incarnation(name, int(member_id)), site, {"r": region}.get, questions)
    calls.keep_only([Incarnation(caller, int(caller_id))])
    port = ControlServer("127.0.0.1", 0, lambda request, peer: {}, name=name, other_protocols={b"PWK1": calls.serve})
    port.start()
    tell(port.port)
    sys.stdin.read()
    calls.stop()
    port.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
