"""Owns members as processes that the program `pywan` starts."""

import os
import signal

from pywan.demo.compare import read_contents
from pywan.member import process
from pywan.testing.waiting import LIMIT_S
from pywan.transport.control import call_once

RECEIVER = '<cache>\n<gateway-receiver start-port="0" end-port="0"/>\n<region name="data" refid="{type}"/>\n</cache>\n'


class Machine:
    """Members as processes of their own, each ended at the end."""

    def __init__(self, directory):
        self.directory = directory
        self.running = {}

    def start(self, kind, name, **options):
        found = process.start(kind, name, options, directory=self.directory)
        self.running[name] = found["pid"], found["host"], found["port"]
        return found["port"]

    def server(self, site, xml, **values):
        file = self.directory / f"{site}.xml"
        file.write_text(xml.format(**values))
        site.cache.close()
        return self.start("server", f"process_{site}", locators=str(site.locator.address), cache_xml_file=str(file))

    def kill(self, name):
        pid, _, _ = self.running.pop(name)
        place = process.MemberFiles.of(self.directory, name)
        member = process.recorded(place)
        os.kill(pid, signal.SIGKILL)
        assert process.wait_until_gone(member, 10.0)

    def ask(self, name, op, **fields):
        _, host, port = self.running[name]
        return call_once((host, port), op, timeout=LIMIT_S, **fields)

    def contents(self, name):
        def scan(cursor):
            reply = self.ask(name, "scan region", region="data", cursor=cursor, limit=20_000)
            return reply["next"], reply["entries"]

        return read_contents(scan)

    def close(self):
        for name in list(self.running):
            self.kill(name)
