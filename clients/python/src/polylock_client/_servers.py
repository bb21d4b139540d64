"""The servers, and the requests to them: one is used until it fails."""

from __future__ import annotations

import copy
import http.client
import json
import math
import os
import socket
import ssl
import threading
from typing import Any, Callable, Iterator, Mapping, Optional, TypeVar, Union
from urllib.parse import urlsplit

from ._clock import Clocks, ServerClock, now
from ._errors import Unavailable, of_problem

Seconds = Union[int, float]
#: The port of a URL without one.
PORT = 7420
T = TypeVar("T")

#: The silence after which a server is given up while a request waits. It sends a line every five seconds.
SILENCE: Seconds = 15
#: The silence before the reply to a request that waits, which begins at once.
REPLY_TIMEOUT: Seconds = 5
#: The age after which the clock of a server is read again, at a grant and at a renewal.
GRANT_AGE: Seconds = 1
RENEWAL_AGE: Seconds = 30
#: The time limit for that.
CLOCK_TIMEOUT: Seconds = 2
#: The silence after which a server is given up that is to renew or to release a hold.
RENEWAL_TIMEOUT: Seconds = 1
#: The longest time for which a message counts, and the number of attempts of one that a server finds too late, because it does not know its clock.
LONGEST_EXPIRY: Seconds = 5
ATTEMPTS = 3


class Withdrawn(Exception):
    """The request that waited was withdrawn."""


class Wait:
    """A request that waits, which another thread may withdraw."""

    def __init__(self) -> None:
        self._withdrawn = threading.Event()
        self._lock = threading.Lock()
        self._socket: Optional[socket.socket] = None

    def withdraw(self) -> None:
        """Ends the wait at once. The server withdraws the request when its connection ends."""
        with self._lock:
            self._withdrawn.set()
            if self._socket is not None:
                disconnect(self._socket)

    def on(self, connection: socket.socket) -> None:
        """Continues the wait on this connection."""
        with self._lock:
            self._socket = connection
            self.ensure_waiting()

    def ensure_waiting(self) -> None:
        """Raises :class:`Withdrawn` if the request was withdrawn."""
        if self._withdrawn.is_set():
            raise Withdrawn

    def sleep(self, pause: Seconds) -> None:
        """Sleeps, unless the request is withdrawn."""
        self._withdrawn.wait(pause)
        self.ensure_waiting()


class Stream:
    """A stream after the line that ends the wait."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        clock: ServerClock,
        url: str,
        read_clock: Callable[[], ServerClock],
    ) -> None:
        #: The line that has ended the wait.
        self.line: dict[str, Any] = {}
        self.connection = connection
        #: The server.
        self.url = url
        self._response = response
        self._clock = clock
        self._read_clock = read_clock

    def lines(self) -> Iterator[dict[str, Any]]:
        while True:
            line = self._response.readline()
            if not line:
                return
            if line.strip():
                yield json.loads(line)

    def deadline(self, until: str, longest_age: Seconds) -> float:
        """Returns the time, by :func:`now`, at which a lease ends at the earliest. The clock of the server is read again after this age: the two clocks drift, and
        the first request may have been late.
        """
        if now() - self._clock.sent > longest_age:
            try:
                clock = self._read_clock()
                # Behind a proxy, another server may reply.
                if clock.server == self._clock.server:
                    self._clock = clock
            except (OSError, ValueError, http.client.HTTPException):
                pass
        return self._clock.deadline(until)

    def close(self) -> None:
        self._response.close()
        self.connection.close()


class Servers:
    """The servers at these URLs."""

    def __init__(
        self,
        urls: tuple[str, ...],
        token: Optional[str],
        connect_timeout: Seconds,
        silence: Seconds,
        context: Optional[ssl.SSLContext],
    ) -> None:
        self._urls = tuple(server(url) for url in urls)
        #: The index of the server that has replied last.
        self._used = 0
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connect_timeout = connect_timeout
        self._silence = silence
        self._context = context
        self._clocks = Clocks()

    def beginning_with(self, url: str) -> Servers:
        """Returns the same servers for a hold: it uses this one, that of its stream, until it fails."""
        servers = copy.copy(self)
        servers._used = self._urls.index(url)
        return servers

    def open(self, path: str, body: dict[str, Any], wait: Optional[Seconds], waiting: Wait) -> Stream:
        """Waits for a lock, for ``wait`` seconds over all servers together."""
        begin = now()

        def on(connection: http.client.HTTPConnection, url: str) -> Stream:
            settings = {"owner": owner(), **body}
            if wait is not None:
                settings["wait"] = text(max(wait - (now() - begin), 0))
            assert connection.sock is not None
            waiting.on(connection.sock)
            if wait != 0:
                connection.sock.settimeout(min(self._silence, REPLY_TIMEOUT))
            sent = now()
            response = self._send(connection, "POST", path, settings)
            connection.sock.settimeout(self._silence)
            clock = ServerClock(sent, response.headers["polylock-clock"])
            stream = Stream(connection, response, clock, url, lambda: self._clock_of(url))
            for line in stream.lines():
                event = line["event"]
                if event == "failed":
                    raise of_problem(line["problem"])
                if event == "queued":
                    continue
                stream.line = line
                # From now on, the deadline limits the silence.
                connection.sock.settimeout(None)
                return stream
            raise ConnectionError("the server has ended while the request waited")

        return self._first(on, waiting=waiting)

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Sends a request that may be repeated."""
        self._repeat("POST", path, body, self._silence)

    def delete(self, path: str) -> None:
        """Sends a request that may be repeated."""
        self._repeat("DELETE", path, None, RENEWAL_TIMEOUT)

    def _repeat(self, method: str, path: str, body: Optional[dict[str, Any]], silence: Seconds) -> None:
        def on(connection: http.client.HTTPConnection, _: str) -> None:
            self._send(connection, method, path, body).read()
            connection.close()

        self._first(on, silence)

    def renew(self, path: str, body: dict[str, Any]) -> float:
        """Renews a hold, and returns its new deadline. Raises :class:`Lost` if it has ended."""

        def on(connection: http.client.HTTPConnection, _: str) -> float:
            sent = now()
            response = self._send(connection, "PUT", path, body, {"If-Match": "*"})
            until = json.loads(response.read())["until"]
            connection.close()
            return ServerClock(sent, response.headers["polylock-clock"]).deadline(until)

        return self._first(on, RENEWAL_TIMEOUT)

    def _clock_of(self, url: str) -> ServerClock:
        connection = self._connect(url, CLOCK_TIMEOUT)
        try:
            sent = now()
            return ServerClock(sent, self._send(connection, "GET", "/healthz", None).headers["polylock-clock"])
        finally:
            connection.close()

    def _first(
        self,
        send: Callable[[http.client.HTTPConnection, str], T],
        silence: Optional[Seconds] = None,
        waiting: Optional[Wait] = None,
    ) -> T:
        failure: Exception = Unavailable("there is no server")
        first = self._used
        for number in range(first, first + len(self._urls)):
            if waiting is not None:
                waiting.ensure_waiting()
            used = number % len(self._urls)
            url = self._urls[used]
            try:
                connection = self._connect(url, self._silence if silence is None else silence)
            except OSError as error:
                failure = error
                continue
            try:
                result = send(connection, url)
                self._used = used
                return result
            # A server that shuts down, too: another one may do better.
            except (OSError, http.client.HTTPException, Unavailable) as error:
                connection.close()
                failure = error
            except BaseException:
                connection.close()
                raise
        raise Unavailable(f"{', '.join(self._urls)}: {failure}") from failure

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Optional[dict[str, Any]],
        headers: Mapping[str, str] = {},
    ) -> http.client.HTTPResponse:
        text = None if body is None else json.dumps(body)
        limit = LONGEST_EXPIRY if connection.sock is None else min(connection.sock.gettimeout() or LONGEST_EXPIRY, LONGEST_EXPIRY)
        for _ in range(ATTEMPTS):
            expires = self._clocks.expires(limit)
            expiry = {} if expires is None else {"Polylock-Expires": expires}
            connection.request(method, path, text, {**self._headers, **headers, **expiry})
            response = connection.getresponse()
            self._clocks.observe(response.headers["polylock-clock"])
            if response.status < 300:
                return response
            problem = _problem(response)
            if problem.get("type") != "urn:polylock:late":
                raise of_problem(problem)
        raise ConnectionError("the server finds each message too late")

    def _connect(self, url: str, silence: Seconds) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        timeout = min(self._connect_timeout, silence)
        if parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=timeout, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        connection.connect()
        assert connection.sock is not None
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock.settimeout(silence)
        return connection


def server(url: str) -> str:
    """Returns the URL of a server with its port. The message of the error does not contain the URL, which may have a password."""
    parts = urlsplit(url)
    others = (parts.path.strip("/"), parts.query, parts.fragment, parts.username, parts.password)
    if parts.scheme not in ("http", "https") or not parts.hostname or any(others):
        raise ValueError("the URL of a lock service is http://host:port or https://host:port, without a path, a user or a query")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or PORT}"


def owner() -> str:
    """Returns the owner of the holds that name none: this process."""
    host = "".join(character for character in socket.gethostname() if character.isprintable())
    return f"{host[:200]}:{os.getpid()}"


def text(seconds: Seconds) -> str:
    """Returns a time for the body of a request."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{seconds!r} is not a time: write a number of seconds")
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{seconds} is not a time: write seconds from 0, and None for no limit")
    return f"{int(seconds * 1000)}ms"


def disconnect(connection: socket.socket) -> None:
    """Ends a connection on which another thread may be reading."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def _problem(response: http.client.HTTPResponse) -> dict[str, Any]:
    try:
        problem = json.loads(response.read())
        return problem if isinstance(problem, dict) else {}
    except ValueError:
        return {"status": response.status, "detail": f"the server replied {response.status}"}
