"""The connection to NATS: opened once and restored automatically, with its errors translated."""

from __future__ import annotations

import asyncio
import json
import re
import time
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import inf
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import RawCredentials
from nats.aio.msg import Msg

from moothall.config import BusSettings
from moothall.errors import BusUnavailable, ConfigurationError, MoothallError
from moothall.events.nats.fast_client import FastClient, keep_cancellation
from moothall.telemetry import get_logger

log = get_logger(__name__)

DEFAULT_PORT = 4222
INBOX = "_INBOX"
SCHEMES = frozenset({"nats", "tls"})
PROBE_SECONDS = 5.0
EXPIRES = 30.0
MIN_EXPIRES = 2.5
_MAX_HEARTBEAT_SECONDS = 2.0
"""The longest time between the heartbeats of an open pull request. A request is lost without a word
if the server of its consumer dies in a cluster.
"""
_DATA_REPLY = "$JS.ACK."
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ConsumerGone(Exception):
    """The server does not know the consumer of a pull request."""


def reason(error: BaseException) -> str:
    """Return the message of an error, or a description if it has none."""
    if isinstance(error, TimeoutError):
        return "no answer; is it running, and is there space on its disk?"
    return str(error) or type(error).__name__


@contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Turn the client's errors into `BusUnavailable`; `action` completes "the bus did not …"."""
    try:
        yield
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BusUnavailable(f"the bus did not {action}: {reason(error)}") from error


def without_credentials(url: str) -> str:
    """Return a URL without its credentials."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    return f"{parts.scheme}://{parts.hostname}:{parts.port or DEFAULT_PORT}"


def _check_schemes(servers: list[str]) -> None:
    """Raise for other schemes than NATS and TLS. Websockets are not offered: the client would need
    an HTTP library, which slows down every command.
    """
    for server in servers:
        scheme, separator, _ = server.partition("://")
        if separator and scheme not in SCHEMES:
            raise ConfigurationError(
                f"bus.url has the unsupported scheme {scheme[:20]}://: use nats://host:4222 or "
                "tls://host:4222"
            )


async def _probe(servers: list[str]) -> None:
    """Check that one of the servers accepts connections. The client itself waits two seconds before
    it retries a first connection; this is quicker and gives a better message.
    """
    reasons = []
    for server in servers:
        parts = urlsplit(server if "://" in server else f"nats://{server}")
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                _, writer = await asyncio.open_connection(
                    parts.hostname, parts.port or DEFAULT_PORT
                )
        except (OSError, TimeoutError) as error:
            reasons.append(f"{without_credentials(server)}: {error if str(error) else 'no answer'}")
            continue
        writer.close()
        return
    raise BusUnavailable(
        f"the bus cannot be reached ({'; '.join(reasons)}); start it, correct bus.url, or unset "
        "bus.url to use the embedded bus"
    )


def inbox(name: str) -> str:
    """Return the inbox prefix of a user. No other user may subscribe to it."""
    return f"{INBOX}.{name}"


def _inbox_prefix(credentials: str) -> str:
    """Return the inbox prefix of the user of these credentials. Each user has its own prefix, named
    in the server's permissions.
    """
    try:
        token = credentials.split("-----")[2].strip().split(".")[1]
        name = str(json.loads(urlsafe_b64decode(token + "=="))["name"])
    except (ValueError, LookupError, TypeError):
        return INBOX
    return inbox(name) if _NAME.fullmatch(name) else INBOX


@asynccontextmanager
async def connection(
    settings: BusSettings, url: str, *, on_lost: Callable[[], None]
) -> AsyncIterator[FastClient]:
    """Connect. A lost connection is restored automatically, however long it takes; `on_lost` is
    called first.

    Raises `BusUnavailable` if no server answers, and `ConfigurationError` if the server refuses the
    credentials or the package for them is not installed.
    """
    credentials = settings.credentials.get_secret_value() if settings.credentials else None
    if credentials and find_spec("nkeys") is None:
        raise ConfigurationError(
            "bus.credentials is set, and nkeys is not installed: pip install 'moothall[server]'"
        )
    servers = await _find_servers(url)
    is_open = False

    async def connection_lost() -> None:
        on_lost()
        client.wake_readers()
        if is_open:
            log.warning("bus connection lost; reconnecting")

    client = FastClient()
    try:
        async with asyncio.timeout(2 * PROBE_SECONDS):
            await keep_cancellation(
                client.connect(
                    servers,
                    allow_reconnect=False,
                    name="moothall",
                    error_cb=_log_error,
                    disconnected_cb=connection_lost,
                    reconnected_cb=client.connection_restored,
                    closed_cb=client.connection_closed,
                    connect_timeout=int(PROBE_SECONDS),
                    reconnect_time_wait=0.2,  # type: ignore[arg-type]  # annotated int, only ever slept on
                    max_reconnect_attempts=-1,
                    ping_interval=10,
                    max_outstanding_pings=2,
                    pending_size=16 * 1024 * 1024,
                    token=settings.token.get_secret_value() if settings.token else None,
                    user_credentials=RawCredentials(credentials) if credentials else None,
                    inbox_prefix=_inbox_prefix(credentials or ""),
                )
            )
    except (nats.errors.Error, TimeoutError, OSError) as error:
        await keep_cancellation(client.close())
        raise _translate_connect_error(error, servers) from error
    client.enable_reconnect()
    is_open = True
    try:
        yield client
    finally:
        is_open = False
        await _flush_and_close(client)


async def _find_servers(url: str) -> list[str]:
    """Return the servers of a URL. Raise `BusUnavailable` if none accepts connections."""
    servers = [part.strip() for part in url.split(",") if part.strip()]
    try:
        _check_schemes(servers)
        await _probe(servers)
    except ValueError as error:
        raise ConfigurationError("bus.url is not a URL such as nats://host:4222") from error
    return servers


async def _log_error(error: Exception) -> None:
    refused = "permissions violation" in str(error).lower()
    (log.warning if refused else log.debug)("bus client", error=str(error) or type(error).__name__)


def _translate_connect_error(error: Exception, servers: list[str]) -> MoothallError:
    server_names = ", ".join(map(without_credentials, servers))
    if "authorization" in str(error).lower():
        return ConfigurationError(
            f"the bus at {server_names} refused the connection ({error}): check bus.token, "
            "bus.credentials and bus.url"
        )
    return BusUnavailable(f"the server at {server_names} does not answer as NATS: {reason(error)}")


async def _flush_and_close(client: FastClient) -> None:
    if client.is_connected:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await keep_cancellation(client.flush())
        except (nats.errors.Error, TimeoutError, OSError) as error:
            log.warning("bus closed with unsent messages", error=str(error))
    await client.close_safely()


_WITHOUT_DOMAIN = 9


@dataclass(frozen=True, slots=True)
class DeliveryPlace:
    """The position of a delivered message: its seq in the stream, its number among the consumer's
    deliveries, and how often it was delivered.
    """

    seq: int
    number: int
    deliveries: int

    @classmethod
    def parse(cls, reply: str) -> DeliveryPlace:
        """Parse the ack subject of a message; only the needed tokens are read."""
        tokens = reply.split(".")
        # newer servers put domain and account first
        count_index = 4 if len(tokens) == _WITHOUT_DOMAIN else 6
        return cls(
            int(tokens[count_index + 1]), int(tokens[count_index + 2]), int(tokens[count_index])
        )


@dataclass(slots=True)
class Pull:
    """An inbox for one pull consumer: requests batches and returns their messages one at a time.

    One request is open at a time. If the server loses it, two heartbeats are missing.
    """

    client: FastClient
    stream: str
    consumer: str
    inbox: str
    expires: float = EXPIRES
    arrived: asyncio.Queue[Msg | None] = field(default_factory=asyncio.Queue)
    _requested: int = 0
    _request_number: int = 0
    _reconnects: int = 0
    _last_message_at: float = 0.0

    @classmethod
    @asynccontextmanager
    async def open(
        cls, client: FastClient, stream: str, consumer: str, expires: float = EXPIRES
    ) -> AsyncIterator[Pull]:
        """Listen for the consumer's messages. If the reader stops reading, an open request still
        draws messages for `expires` seconds.
        """
        pull = cls(client, stream, consumer, client.new_inbox(), expires)
        subscription = await client.listen(f"{pull.inbox}.*", pull.arrived.put_nowait)
        client.readers.add(pull.wake)
        try:
            yield pull
        finally:
            client.readers.discard(pull.wake)
            await client.stop_listening(subscription)

    def wake(self) -> None:
        """Make `next` return, because the connection or the capacity of its caller has changed."""
        self.arrived.put_nowait(None)

    @property
    def _heartbeat_seconds(self) -> float:
        return min(_MAX_HEARTBEAT_SECONDS, self.expires / 5)

    async def next(self, batch: int, seconds: float = inf) -> Msg | None:
        """Return the next message, or None after a heartbeat, a change of the connection or
        `seconds` without a message; then ask again.

        `batch` is the number of messages requested when no request is open. Raises `ConsumerGone`
        and the client's `ConnectionClosedError`.
        """
        if self._requested <= 0 and self.arrived.empty():
            # Requests made while disconnected would all be sent at once on return.
            if not self.client.is_connected:
                if self.client.is_closed:
                    raise nats.errors.ConnectionClosedError
                await asyncio.sleep(0.05)
                return None
            self._request(batch)
        try:
            async with asyncio.timeout(min(seconds, 2.5 * self._heartbeat_seconds)):
                message = await self.arrived.get()
        except TimeoutError:
            message = None
        if message is None:
            if self.client.is_closed:
                raise nats.errors.ConnectionClosedError
            if (
                self.client.stats["reconnects"] != self._reconnects
                or time.monotonic() - self._last_message_at > 2 * self._heartbeat_seconds
            ):
                self._requested = 0
            return None
        self._last_message_at = time.monotonic()
        if message.reply.startswith(_DATA_REPLY):
            self._requested -= 1
            return message
        await self._handle_status(message)
        return None

    def next_nowait(self) -> Msg | None:
        """Return the next message if it has arrived already."""
        if self.arrived.empty():
            return None
        message = self.arrived.get_nowait()
        if message is not None and message.reply.startswith(_DATA_REPLY):
            self._requested -= 1
            return message
        # `next` handles status messages and wake-ups; their order does not matter
        self.arrived.put_nowait(message)
        return None

    def _request(self, batch: int) -> None:
        self._request_number += 1
        self._requested = batch
        self._last_message_at = time.monotonic()
        self._reconnects = self.client.stats["reconnects"]
        request = {
            "batch": batch,
            "expires": int(self.expires * 1e9),
            "idle_heartbeat": int(self._heartbeat_seconds * 1e9),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.consumer}"
        self.client.publish_nowait(
            subject, json.dumps(request).encode(), reply=f"{self.inbox}.{self._request_number}"
        )

    async def _handle_status(self, notice: Msg) -> None:
        headers = notice.headers or {}
        status, description = headers.get("Status", ""), headers.get("Description", "")
        if status == "100" or notice.subject != f"{self.inbox}.{self._request_number}":
            return  # a heartbeat, or the end of a request that was given up
        self._requested = 0
        if status in {"503", "404"} or "Consumer Deleted" in description:
            raise ConsumerGone(f"{self.stream}/{self.consumer}: {status} {description}")
        if status != "408":
            log.debug("pull ended", consumer=self.consumer, status=status, reason=description)
            await asyncio.sleep(0.1)
