"""The servers, and the requests to them: the first one that replies serves a request."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from typing import Any, Callable, Iterator, NamedTuple, Optional, TypeVar, Union
from urllib.parse import urlsplit

from ._clock import ServerClock, now
from ._errors import Unavailable, of_problem

Seconds = Union[int, float]
T = TypeVar("T")

#: The silence after which a server is given up while a request waits. It sends a line every five seconds.
SILENCE: Seconds = 15


class Stream(NamedTuple):
    """A stream after the line that ends the wait."""

    line: dict[str, Any]
    connection: http.client.HTTPConnection
    response: http.client.HTTPResponse
    clock: ServerClock

    def lines(self) -> Iterator[dict[str, Any]]:
        return _lines(self.response)

    def close(self) -> None:
        self.response.close()
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
        self._urls = urls
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connect_timeout = connect_timeout
        self._silence = silence
        self._context = context

    def open(self, path: str, body: dict[str, Any], wait: Optional[Seconds]) -> Stream:
        """Waits for a lock, for ``wait`` seconds over all servers together."""
        begin = now()

        def on(connection: http.client.HTTPConnection) -> Stream:
            settings = dict(body)
            if wait is not None:
                settings["wait"] = text(max(wait - (now() - begin), 0))
            sent = now()
            response = self._send(connection, path, settings)
            clock = ServerClock(sent, response.headers["polylock-clock"])
            for line in _lines(response):
                if line["event"] == "failed":
                    raise of_problem(line["problem"])
                if line["event"] != "queued":
                    assert connection.sock is not None
                    # From now on, the deadline limits the silence.
                    connection.sock.settimeout(None)
                    return Stream(line, connection, response, clock)
            raise ConnectionError("the server has ended while the request waited")

        return self._first(on)

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Sends a request that may be repeated."""

        def on(connection: http.client.HTTPConnection) -> None:
            self._send(connection, path, body).read()
            connection.close()

        self._first(on)

    def _first(self, send: Callable[[http.client.HTTPConnection], T]) -> T:
        failure: Exception = Unavailable("there is no server")
        for url in self._urls:
            try:
                connection = self._connect(url)
            except OSError as error:
                failure = error
                continue
            try:
                return send(connection)
            # A server that shuts down, too: another one may do better.
            except (OSError, http.client.HTTPException, Unavailable) as error:
                connection.close()
                failure = error
            except BaseException:
                connection.close()
                raise
        raise Unavailable(f"{', '.join(self._urls)}: {failure}") from failure

    def _send(self, connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        connection.request("POST", path, json.dumps(body), self._headers)
        response = connection.getresponse()
        if response.status >= 300:
            raise of_problem(_problem(response))
        return response

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


def text(seconds: Seconds) -> str:
    """Returns a time for the body of a request."""
    return f"{int(seconds * 1000)}ms"


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
