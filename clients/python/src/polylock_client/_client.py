"""The synchronous client: a lock is the stream of a request, read by a thread."""

from __future__ import annotations

import ssl
import threading
from types import TracebackType
from typing import Any, Callable, Iterable, Optional, TypeVar
from urllib.parse import quote

from ._clock import now
from ._errors import Unavailable
from ._held import Attempt, Entered, Held
from ._servers import SILENCE, Seconds, Servers, Stream, Wait, text

H = TypeVar("H", bound=Optional[Held])

#: The longest pause of a candidate while no server can be reached.
LONGEST_PAUSE: Seconds = 2


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
        self._servers = Servers(urls or ("http://127.0.0.1:7420",), token, connect_timeout, silence, context)

    def lock(
        self,
        name: str,
        *,
        also: Iterable[str] = (),
        mode: Optional[str] = None,
        ttl: Optional[Seconds] = None,
        wait: Optional[Seconds] = None,
        owner: Optional[str] = None,
        label: Optional[str] = None,
    ) -> Lock:
        """Returns the lock ``name``, to be acquired.

        ``also`` are further locks: all of them are acquired, or none. ``mode`` is ``EX`` (exclusive, the default), ``PR`` (shared) or another mode of the store.
        ``ttl`` is the lease in seconds: the time until the lock of a dead holder is free. ``wait`` is the longest time to wait in seconds; 0 does not wait.
        """
        return Lock(self._servers, name, _body(ttl, also=list(also) or None, mode=mode, owner=owner, label=label), wait)

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
        return Lock(self._servers, name, _body(ttl, slots=slots, owner=owner, label=label), wait)

    def campaign(
        self,
        name: str,
        *,
        ttl: Optional[Seconds] = None,
        owner: Optional[str] = None,
        label: Optional[str] = None,
    ) -> Lock:
        """Returns the lock of the leader in the election ``name``, to be acquired.

        The candidate waits without a limit, also while no server can be reached. Its term ends with the hold; end its work before another one leads.
        """
        return Lock(self._servers, name, _body(ttl, owner=owner, label=label), None, campaigns=True)

    def once(
        self,
        name: str,
        *,
        every: Seconds,
        at: Optional[Seconds] = None,
        retries: int = 0,
        ttl: Optional[Seconds] = None,
        wait: Optional[Seconds] = None,
        owner: Optional[str] = None,
        label: Optional[str] = None,
    ) -> Optional[Attempt]:
        """Begins an attempt of the job ``name``, which runs once in each period of ``every`` seconds over all machines; ``None`` if it is not due.

        It waits while another process runs the job. Periods begin ``at`` seconds after midnight in UTC. ``retries`` is the number of further attempts in
        a period after one that has failed, or whose process has died.
        """
        return self._once(Wait(), name, every=every, at=at, retries=retries, ttl=ttl, wait=wait, owner=owner, label=label)

    def _once(
        self,
        waiting: Wait,
        name: str,
        *,
        every: Seconds,
        at: Optional[Seconds],
        retries: int,
        ttl: Optional[Seconds],
        wait: Optional[Seconds],
        owner: Optional[str],
        label: Optional[str],
    ) -> Optional[Attempt]:
        times = {"every": text(every), "at": None if at is None else text(at)}
        body = _body(ttl, retries=retries, owner=owner, label=label, **times)

        def attempt_of(stream: Stream) -> Optional[Attempt]:
            return None if stream.line["event"] == "skipped" else Attempt(name, self._servers, stream)

        return _acquire(self._servers, f"/v1/jobs/{quote(name, safe='')}", body, wait, waiting, attempt_of)


def _acquire(
    servers: Servers, path: str, body: dict[str, Any], wait: Optional[Seconds], waiting: Wait, held_by: Callable[[Stream], H]
) -> H:
    """Waits for a lock, and returns the hold of its stream; ``None`` if it has none."""
    begin = now()
    while True:
        stream = servers.open(path, body, None if wait is None else max(wait - (now() - begin), 0), waiting)
        held = held_by(stream)
        if held is None:
            stream.close()
            return held
        if held.is_held:
            return held
        # Its lease had ended when the grant arrived.
        held.release()


def _body(ttl: Optional[Seconds], **settings: Any) -> dict[str, Any]:
    settings["ttl"] = None if ttl is None else text(ttl)
    return {key: value for key, value in settings.items() if value is not None}


class Lock:
    """A lock to be acquired: ``acquire()``, or a ``with`` statement.

    Threads may share it: each acquisition is a request and a hold of its own.
    """

    def __init__(self, servers: Servers, name: str, body: dict[str, Any], wait: Optional[Seconds], campaigns: bool = False) -> None:
        self._servers = servers
        self._name = name
        self._body = body
        self._wait = wait
        self._campaigns = campaigns
        self._entered: Entered[Held] = Entered(name)

    def acquire(self) -> Held:
        """Waits for the lock.

        Raises :class:`NotAcquired` if another request holds it and the time to wait is over, :class:`Unavailable` if no server can be reached, and
        :class:`Refused` for invalid settings.
        """
        return self._acquire(Wait())

    def _acquire(self, waiting: Wait) -> Held:
        path, pause = f"/v1/locks/{quote(self._name, safe='')}", 0.1
        while True:
            try:
                return _acquire(self._servers, path, self._body, self._wait, waiting, self._held_by)
            except Unavailable:
                if not self._campaigns:
                    raise
            waiting.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _held_by(self, stream: Stream) -> Held:
        return Held(self._name, self._servers, stream, self._body.get("mode"))

    def __enter__(self) -> Held:
        return self._entered.enter(threading.get_ident(), self.acquire())

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._entered.leave(threading.get_ident())._leave(kind)
