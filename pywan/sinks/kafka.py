"""Owns the sink that sends the events of a queue to topics of Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pywan.errors import ConfigurationError, ConnectivityError
from pywan.sinks.threads import PerThread

if TYPE_CHECKING:
    from pywan.events import AsyncEvent

# What the user's configuration does not say. An idempotent producer waits for all in-sync replicas of a partition. It
# leaves no gaps: a failed message takes along those behind it in the same partition, so a later try sends all in order.
_DEFAULTS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "delivery.timeout.ms": 30_000,
    "linger.ms": 1,
}
_ROUND_S = 1.0


class KafkaSink:
    """Sends each event as a message with its key, and acknowledges a batch when the brokers have all of it.

    A batch of which a message fails comes again: at least once, in the order of each key. The headers of a message
    identify its event, so that a consumer can leave out what comes again: in one partition of a topic, the messages of
    one `pywan-queue`, `pywan-life` and `pywan-partition` have a `pywan-sequence` that grows, and that of a repeated one
    does not.

    The message of a destroy has no value, as a compacted topic expects it.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        topic: str | Callable[[AsyncEvent], str] | None = None,
        key: Callable[[AsyncEvent], bytes | str | None] | None = None,
        value: Callable[[AsyncEvent], bytes | str | None] | None = None,
    ) -> None:
        """Makes the sink. It connects when the first batch comes.

        Args:
            config: The configuration of `confluent_kafka.Producer`. It needs `bootstrap.servers`. What it does not say
                is `enable.idempotence` and `enable.gapless.guarantee` true, a `delivery.timeout.ms` of 30 s, and a
                `linger.ms` of 1.
            topic: The topic, or a function of the event that returns it. None: the name of the region.
            key: A function of the event that returns the key. None: bytes and text as they are, all else as JSON.
            value: A function of the event that returns the value; it is not called for a destroy. None: as for keys.

        Raises:
            ConfigurationError: An argument cannot be used, or confluent-kafka is not installed.
        """
        try:
            import confluent_kafka
        except ImportError:
            raise ConfigurationError(
                "a KafkaSink needs confluent-kafka, which is not installed: pip install pywan[kafka]"
            ) from None
        if not isinstance(config, Mapping) or not any(name.endswith("bootstrap.servers") for name in config):
            raise ConfigurationError(f"config has to be a map that has bootstrap.servers, and is {config!r:.80}")
        if not (topic is None or callable(topic) or (isinstance(topic, str) and topic)):
            raise ConfigurationError(f"topic has to be a name or a function of the event, and is {topic!r:.80}")
        self._config: dict[str, Any] = {**_DEFAULTS, **config}
        if "message.timeout.ms" in config:  # The same under another name.
            self._config.pop("delivery.timeout.ms")
        if str(self._config["enable.idempotence"]).lower() == "false" and "enable.gapless.guarantee" not in config:
            self._config.pop("enable.gapless.guarantee")
        self._topic, self._key, self._value = topic, key, value
        self._kafka: Any = confluent_kafka
        self._producers = PerThread(lambda: _Producer(self._kafka, self._config))

    def process_events(self, events: Sequence[AsyncEvent]) -> bool:
        """Sends a batch that a queue hands over. It raises what the brokers say of the first message that failed."""
        queue = getattr(events, "queue", None)
        life = getattr(events, "numbering", None)
        if not isinstance(queue, str) or not isinstance(life, int):
            raise TypeError(f"a sink takes the batches of a queue as they are, and no {type(events).__name__}")
        of_batch = [("pywan-queue", queue.encode()), ("pywan-life", f"{life:016x}".encode())]
        self._producers.get().send([self._message(event, of_batch) for event in events])
        return True

    def close(self) -> None:
        """Closes the connections."""
        self._producers.close()

    def _message(self, event: AsyncEvent, of_batch: list[tuple[str, bytes]]) -> dict[str, Any]:
        topic = self._topic(event) if callable(self._topic) else self._topic or event.region
        value = None
        if event.operation != "destroy":
            value = encoded(event.value) if self._value is None else self._value(event)
        return {
            "topic": topic,
            "key": encoded(event.key) if self._key is None else self._key(event),
            "value": value,
            "timestamp": event.creation_timestamp,
            "headers": [
                *of_batch,
                ("pywan-region", (event.region or "").encode()),
                ("pywan-operation", event.operation.encode()),
                ("pywan-partition", b"%d" % event.partition),
                ("pywan-sequence", b"%d" % event.sequence),
            ],
        }

    def __repr__(self) -> str:
        return f"<{type(self).__module__}:{type(self).__qualname__}>"


def encoded(given: Any) -> bytes | None:
    """Returns a key or value as a message has it: bytes and text as they are, None as nothing, all else as JSON."""
    if given is None or isinstance(given, bytes):
        return given
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


class _Producer:
    """The producer of one thread. After a failure there is a new one: it knows nothing of messages that failed."""

    def __init__(self, kafka: Any, config: dict[str, Any]) -> None:
        self._kafka, self._config = kafka, config
        self._producer: Any = None

    def send(self, messages: list[dict[str, Any]]) -> None:
        """Returns when the brokers have all messages. If it raises, no message is on its way any more."""
        if self._producer is None:
            self._producer = self._kafka.Producer(self._config)
        failures: list[str] = []

        def on_delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(f"{error.name()}: {error.str()} (topic {message.topic()})")

        try:
            for message in messages:
                self._begin(message, on_delivered)
                if failures:
                    break
            # Each message is reported within `delivery.timeout.ms`, as done or as failed.
            while self._producer.flush(_ROUND_S):
                pass
            if failures:
                raise ConnectivityError(f"{len(failures)} messages of {len(messages)} failed: {failures[0]}")
        except BaseException:
            self.close()
            raise

    def _begin(self, message: dict[str, Any], on_delivered: Callable[[Any, Any], None]) -> None:
        while True:
            try:
                self._producer.produce(**message, on_delivery=on_delivered)
                self._producer.poll(0)
                return
            except BufferError:  # The producer's own queue is full.
                self._producer.poll(_ROUND_S)

    def close(self) -> None:
        """Ends the producer, after all that is on its way was reported."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()  # What did not leave yet.
            while producer.flush(_ROUND_S):
                pass
