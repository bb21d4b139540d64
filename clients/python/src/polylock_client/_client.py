"""The synchronous client: a lock is the stream of a request, read by a thread."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from types import TracebackType
from typing import Any, Callable, Iterator, Optional, Union
from urllib.parse import quote, urlsplit

from ._clock import ServerClock, now
from ._errors import Lost, PolylockError, Unavailable, of_problem

Seconds = Union[int, float]

#: The silence after which a server is given up while a request waits. It sends a line every five seconds.
SILENCE: Seconds = 15


class Client:
    """The lock service at one of these URLs. All servers must serve the same store.

    ``token`` is the one of this caller, if the servers require one. ``silence`` is the time without a line from a server after which a request that waits
    is sent to the next one: more than the five seconds between two lines of a server.
    """

    def __init__(
        self,
        *urls: str,
        token: Optional[str] = None,
        connect_timeout: Seconds = 5,
        silence: Seconds = SILENCE,
        context: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._urls = urls or ("http://127.0.0.1:7420",)
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connect_timeout = connect_timeout
        self._silence = silence
        self._context = context

    def lock(
        self,
        name: str,
        *,
        mode: Optional[str] = None,
        ttl: Optional[Seconds] = None,
        wait: Optional[Seconds] = None,
        owner: Optional[str] = None,
        label: Optional[str] = None,
    ) -> Lock:
        """Returns the lock ``name``, to be acquired.

        ``mode`` is ``EX`` (exclusive, the default), ``PR`` (shared) or another mode of the store. ``ttl`` is the lease in seconds: the time until the lock of a dead
        holder is free. ``wait`` is the longest time to wait in seconds; 0 does not wait.
        """
        settings = {"mode": mode, "ttl": _text(ttl), "owner": owner, "label": label}
        return Lock(self, name, {key: text for key, text in settings.items() if text is not None}, wait)

    def semaphore(
        self,
        name: str,
        slots: int,
        *,
        ttl: Optional[Seconds] = None,
        wait: Optional[Seconds] = None,
        owner: Optional[str] = None,
        label: Optional[str] = None,
    ) -> Lock:
        """Returns the semaphore ``name`` with this number of slots, of which one is to be acquired. All requests state the same number. The slot is in
        :attr:`Held.slot`. The other settings are those of :meth:`lock`.
        """
        lock = self.lock(name, ttl=ttl, wait=wait, owner=owner, label=label)
        lock._body["slots"] = slots
        return lock

    def _connect(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not the URL of a lock service: http://host:port")
        if parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=self._connect_timeout, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port or 7420, timeout=self._connect_timeout)
        connection.connect()
        assert connection.sock is not None
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock.settimeout(self._silence)
        return connection


def _text(seconds: Optional[Seconds]) -> Optional[str]:
    return None if seconds is None else f"{int(seconds * 1000)}ms"


class Lock:
    """A lock to be acquired: ``acquire()``, or a ``with`` statement."""

    def __init__(self, client: Client, name: str, body: dict[str, Any], wait: Optional[Seconds]) -> None:
        self._client = client
        self._name = name
        self._body = body
        self._wait = wait
        self._held: Optional[Held] = None

    def acquire(self) -> Held:
        """Waits for the lock.

        Raises :class:`NotAcquired` if another request holds it and the time to wait is over, :class:`Unavailable` if no server can be reached, and
        :class:`Refused` for invalid settings.
        """
        begin = now()
        failure: Exception = Unavailable("there is no server")
        for url in self._client._urls:
            try:
                connection = self._client._connect(url)
            except OSError as error:
                failure = error
                continue
            try:
                return self._acquire_on(connection, now() - begin)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                failure = error
            except BaseException:
                connection.close()
                raise
        raise Unavailable(f"{', '.join(self._client._urls)}: {failure}") from failure

    def _acquire_on(self, connection: http.client.HTTPConnection, waited: float) -> Held:
        body = dict(self._body)
        if self._wait is not None:
            body["wait"] = f"{int(max(self._wait - waited, 0) * 1000)}ms"
        sent = now()
        path = f"/v1/locks/{quote(self._name, safe='')}"
        connection.request("POST", path, json.dumps(body), self._client._headers)
        response = connection.getresponse()
        if response.status != 200:
            raise of_problem(_problem(response))
        clock = ServerClock(sent, response.headers["polylock-clock"])
        for line in _lines(response):
            event = line["event"]
            if event == "granted":
                assert connection.sock is not None
                # From now on, the deadline limits the silence.
                connection.sock.settimeout(None)
                return Held(self._name, connection, response, clock, line)
            if event == "failed":
                raise of_problem(line["problem"])
        raise ConnectionError("the server has ended while the request waited")

    def __enter__(self) -> Held:
        self._held = self.acquire()
        return self._held

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        held, self._held = self._held, None
        assert held is not None
        try:
            if kind is None:
                held.ensure_held()
        finally:
            held.release()


class Held:
    """A lock that is held, until ``release()`` or its loss."""

    def __init__(
        self,
        name: str,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        clock: ServerClock,
        granted: dict[str, Any],
    ) -> None:
        self.name = name
        #: The fencing token, greater than all earlier ones of this lock.
        self.fencing_token: int = granted["fencing_token"]
        #: The number of the slot of a semaphore, from 0; ``None`` for a lock.
        self.slot: Optional[int] = granted.get("slot")
        #: Set when the lock is lost, at the deadline at the latest.
        self.lost = threading.Event()
        #: The reason for the loss, as one word.
        self.reason: Optional[str] = None
        self._connection = connection
        self._socket = connection.sock
        self._response = response
        self._clock = clock
        self._deadline = clock.deadline(granted["until"])
        self._changed = threading.Condition()
        self._ended = False
        self._on_loss: list[Callable[[], None]] = []
        # The reader waits for the server, and the watch for the deadline: a silent server delays no loss.
        for run in (self._read, self._watch):
            threading.Thread(target=run, name=f"polylock {name}", daemon=True).start()

    @property
    def remaining(self) -> float:
        """The seconds until the deadline, unless the lock is renewed before; 0 once it is lost."""
        return 0.0 if self._has_ended() else max(self._deadline - now(), 0.0)

    @property
    def is_held(self) -> bool:
        """True before the deadline, and before a loss or the release."""
        return self.remaining > 0

    def ensure_held(self) -> None:
        """Raises :class:`Lost` if the lock is not held, before a side effect."""
        if not self.is_held:
            raise Lost(self.name, self.reason or "deadline")

    def release(self) -> None:
        """Releases the lock. It may be called again."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        # The reader then ends, and closes the connection.
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _has_ended(self) -> bool:
        return self._ended or self.lost.is_set()

    def _lose(self, reason: str) -> None:
        with self._changed:
            if not self._has_ended():
                self.reason = reason
                self.lost.set()
                self._changed.notify_all()
                for call in self._on_loss:
                    call()

    def _call_on_loss(self, call: Callable[[], None]) -> None:
        with self._changed:
            if self.lost.is_set():
                call()
            else:
                self._on_loss.append(call)

    def _read(self) -> None:
        try:
            for line in _lines(self._response):
                if line["event"] == "renewed":
                    with self._changed:
                        # A renewal after the deadline revives nothing.
                        if now() < self._deadline:
                            self._deadline = max(self._deadline, self._clock.deadline(line["until"]))
                            self._changed.notify_all()
                elif line["event"] == "lost":
                    self._lose(line["reason"])
        except (OSError, ValueError, http.client.HTTPException):
            # Without the server, the lock is held until its deadline.
            pass
        finally:
            self._response.close()
            self._connection.close()

    def _watch(self) -> None:
        with self._changed:
            while not self._has_ended():
                left = self._deadline - now()
                if left <= 0:
                    break
                # The timeout of a condition stands still while the machine is suspended, so it is short.
                self._changed.wait(min(left, 0.5))
        self._lose("deadline")


def _problem(response: http.client.HTTPResponse) -> dict[str, Any]:
    try:
        problem = json.loads(response.read())
        return problem if isinstance(problem, dict) else {}
    except ValueError:
        return {"status": response.status, "detail": f"the server replied {response.status}"}


def _lines(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while True:
        line = response.readline()
        if not line:
            return
        if line.strip():
            yield json.loads(line)


__all__ = ["Client", "Held", "Lock", "PolylockError"]
