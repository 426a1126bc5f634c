"""Owns a real broker of Kafka on the loopback network. `make kafka-broker` fetches it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from pywan.testing.processes import ProcessFailed
from pywan.testing.waiting import LIMIT_S, eventually
from support.ports import free_port
from support.tree import ROOT

JARS = ROOT / "build" / "kafka"


def why_no_broker() -> str | None:
    """None: a broker can run here. Otherwise what is missing."""
    if shutil.which("java") is None:
        return "there is no Java"
    return None if any(JARS.glob("kafka_*.jar")) else "there is no broker of Kafka: make kafka-broker"


class Broker:
    """One broker, which is its own controller. It ends with this process at the latest, however that ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pywan-kafka-"))
        self.port, controller = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        properties = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / "data",
            "num.partitions": 4,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        self._properties = self.folder / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        try:
            done = subprocess.run(
                [
                    *self._java("kafka.tools.StorageTool"),
                    "format",
                    "-t",
                    "AAAAAAAAAAAAAAAAAAAAAA",
                    "-c",
                    self._properties,
                ],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            if done.returncode:
                raise ProcessFailed(f"the broker's folder: {done.stdout}{done.stderr}")
            self.start()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _java(main: str) -> list[str]:
        return ["setpriv", "--pdeathsig=KILL", "java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", main]

    def start(self) -> None:
        """Returns when it answers."""
        import confluent_kafka

        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*self._java("kafka.Kafka"), str(self._properties)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        client = confluent_kafka.Producer({"bootstrap.servers": self.address, "log_level": 0})

        def answers() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise ProcessFailed(f"the broker ended: {(self.folder / 'log').read_text()[-3000:]}")
            try:
                return bool(client.list_topics(timeout=1).brokers)
            except confluent_kafka.KafkaException:
                return False

        eventually(answers, what="an answer of the broker")

    def kill(self) -> None:
        """With SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
