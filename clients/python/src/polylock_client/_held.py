"""Locks that are held."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import random
import threading
import time
import warnings
from types import TracebackType
from typing import Callable, Generic, Optional, TypeVar
from urllib.parse import quote, urlencode

from ._clock import now
from ._errors import Lost, PolylockError, Unavailable
from ._servers import GRANT_AGE, RENEWAL_AGE, Seconds, Servers, Stream, disconnect, text

#: The longest pause between two attempts of a release.
LONGEST_PAUSE: Seconds = 1

T = TypeVar("T")

_log = logging.getLogger("polylock_client")


class Hold:
    """A hold and its threads. They do not refer to the :class:`Held` of the caller, so one that is forgotten is noticed."""

    def __init__(self, name: str, servers: Servers, stream: Stream, settings: dict[str, object]) -> None:
        granted = stream.line
        self.name = name
        self.lost = threading.Event()
        self.reason: Optional[str] = None
        # The server of the stream is notified of a break at once, as long as it has the renewals.
        self._servers = servers.beginning_with(stream.url)
        self._settings = settings
        self._ids: dict[str, str] = granted.get("ids") or {name: granted["id"]}
        self._unreleased = dict(self._ids)
        self._ttl: float = granted["ttl_ms"] / 1000
        self._stream = stream
        self._socket = stream.connection.sock
        self._deadline = stream.deadline(granted["until"], GRANT_AGE)
        # The time that is left at a renewal. Random, so that clients with grants of the same time renew one after the other.
        self._due = self._ttl * random.uniform(0.6, 0.67)
        self._renewing = False
        self._changed = threading.Condition()
        self._ended = False
        self._on_loss: list[Callable[[], None]] = []
        # A child process has a copy of the hold, and none of its threads.
        self._process = os.getpid()
        # The reader waits for the server, and the watch for the deadline: a silent server delays no loss.
        for run in (self._read, self._watch):
            threading.Thread(target=run, name=f"polylock {name}", daemon=True).start()

    @property
    def is_foreign(self) -> bool:
        """True in a child process of the one that holds the lock."""
        return os.getpid() != self._process

    @property
    def has_ended(self) -> bool:
        """True after a loss or the release."""
        return self._ended or self.lost.is_set() or self.is_foreign

    @property
    def remaining(self) -> float:
        """The seconds until the deadline; 0 once it is lost."""
        return 0.0 if self.has_ended else max(self._deadline - now(), 0.0)

    def release(self) -> None:
        """Releases the lock once. It is repeated in the background if no server can be reached."""
        if self.is_foreign:
            return
        with self._changed:
            is_first = not self._ended
            self._ended = True
            self._changed.notify_all()
        if is_first and not self._delete_all():
            threading.Thread(target=self._release_later, name=f"polylock release {self.name}", daemon=True).start()
        # The reader then ends, and closes the connection.
        disconnect(self._socket)

    def _delete_all(self) -> bool:
        """Releases the locks that are not released yet. Returns false if one may have to be released again."""
        for name, identity in list(self._unreleased.items()):
            # The end of a stream is no release: the network may have cut it.
            try:
                self._servers.delete(f"/v1/holds/{identity}?{urlencode({'name': name, **self._settings})}")
            except Unavailable:
                continue
            except PolylockError as error:
                _log.warning("lock %s is not released, and free when its lease has ended: %s", name, error)
            del self._unreleased[name]
        return not self._unreleased

    def _release_later(self) -> None:
        pause, end = 0.1, self._deadline + self._ttl
        while now() + pause < end:
            time.sleep(pause)
            if self._delete_all():
                return
            pause = min(pause * 2, LONGEST_PAUSE)
        _log.warning("lock %s could not be released: its lease has ended", self.name)

    def lose(self, reason: str) -> None:
        """Reports a loss, and ends the stream."""
        with self._changed:
            if self.has_ended:
                return
            self.reason = reason
            self.lost.set()
            self._changed.notify_all()
            for call in self._on_loss:
                call()
        disconnect(self._socket)

    def call_on_loss(self, call: Callable[[], None]) -> None:
        """Calls a function at the loss, in any thread."""
        with self._changed:
            if self.lost.is_set():
                call()
            else:
                self._on_loss.append(call)

    def _read(self) -> None:
        try:
            for line in self._stream.lines():
                if line["event"] == "renewed":
                    deadline = self._stream.deadline(line["until"], RENEWAL_AGE)
                    with self._changed:
                        self._extend(deadline)
                # The server's own deadline says nothing: this client may have renewed the lock elsewhere.
                elif line["event"] == "lost" and line["reason"] != "deadline":
                    self.lose(line["reason"])
        except (OSError, ValueError, http.client.HTTPException):
            pass
        finally:
            self._stream.close()

    def _extend(self, deadline: float) -> None:
        # A renewal after the deadline revives nothing.
        if now() < self._deadline:
            self._deadline = max(self._deadline, deadline)

    def _renew(self) -> None:
        """Renews the lock, on any server."""
        body, deadlines = {"ttl": text(self._ttl), **self._settings}, []
        try:
            for name, identity in self._ids.items():
                deadlines.append(self._servers.renew(f"/v1/holds/{identity}", {"name": name, **body}))
        except Lost as lost:
            self.lose(lost.reason)
        except PolylockError:
            deadlines = []
        with self._changed:
            self._renewing = False
            if deadlines:
                self._extend(min(deadlines))

    def _watch(self) -> None:
        # The timeout of a condition stands still while the machine is suspended, so it is short.
        tick = min(self._ttl / 10, 0.5)
        with self._changed:
            while not self.has_ended:
                left = self._deadline - now()
                if left <= 0:
                    break
                if left < self._due and not self._renewing:
                    self._renewing = True
                    threading.Thread(target=self._renew, name=f"polylock {self.name}", daemon=True).start()
                self._changed.wait(min(left, tick))
        self.lose("deadline")


class Held:
    """A lock that is held, until ``release()`` or its loss.

    One that nobody refers to any more is released, with a :class:`ResourceWarning`. In a child process made by ``os.fork()`` it is not held, and
    ``release()`` does nothing: the parent holds the lock.
    """

    def __init__(self, name: str, servers: Servers, stream: Stream, mode: Optional[str] = None) -> None:
        granted = stream.line
        self.name = name
        #: The fencing token, greater than all earlier ones of this lock.
        self.fencing_token: int = granted["fencing_token"]
        #: The fencing token of each lock by its name, if there are several.
        self.fencing_tokens: dict[str, int] = granted.get("fencing_tokens") or {name: self.fencing_token}
        #: The number of the slot of a semaphore, from 0; ``None`` for a lock.
        self.slot: Optional[int] = granted.get("slot")
        self._servers = servers
        settings = {key: value for key, value in (("mode", mode), ("slot", self.slot)) if value is not None}
        self._hold = Hold(name, servers, stream, settings)
        #: Set when the lock is lost, at the deadline at the latest.
        self.lost = self._hold.lost

    @property
    def reason(self) -> Optional[str]:
        """The reason for the loss, as one word."""
        return self._hold.reason

    @property
    def remaining(self) -> float:
        """The seconds until the deadline, unless the lock is renewed before; 0 once it is lost."""
        return self._hold.remaining

    @property
    def is_held(self) -> bool:
        """True before the deadline, and before a loss or the release."""
        return self.remaining > 0

    def ensure_held(self) -> None:
        """Raises :class:`Lost` if the lock is not held, before a side effect."""
        if not self.is_held:
            raise Lost.of(self.name, "fork" if self._hold.is_foreign else self.reason or "deadline")

    def release(self) -> None:
        """Releases the lock. It may be called again. If no server can be reached, the release is repeated in the background until the lease has ended."""
        self._hold.release()

    def __del__(self) -> None:
        # The hold is missing if its creation has failed.
        hold: Optional[Hold] = self.__dict__.get("_hold")
        if hold is not None and not hold.has_ended:
            # Without threads at the end of the interpreter, the lock is free when its lease has ended.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=hold.release, name=f"polylock release {self.name}", daemon=True).start()
            # It may be an exception.
            warnings.warn(f"lock {self.name} was not released, and nothing refers to it", ResourceWarning, source=self)

    def _leave(self, kind: Optional[type[BaseException]]) -> None:
        """Ends a ``with`` statement: its body has run under the lock to its end, or raises."""
        try:
            if kind is None:
                self.ensure_held()
        finally:
            self.release()


class Entered(Generic[T]):
    """The holds of the ``with`` statements of a lock object, which threads or tasks share."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._holds: list[tuple[object, T]] = []

    def enter(self, by: object, held: T) -> T:
        with self._lock:
            self._holds.append((by, held))
        return held

    def leave(self, by: object) -> T:
        """Returns the last hold of this thread or task, or the only one: a fixture may be left by another one."""
        with self._lock:
            own = [index for index, (entered_by, _) in enumerate(self._holds) if entered_by == by]
            if not own and len(self._holds) != 1:
                raise RuntimeError(f"lock {self._name}: this thread or task has not entered it, and {len(self._holds)} others have")
            return self._holds.pop(own[-1] if own else 0)[1]


class Attempt(Held):
    """An attempt of a job that is due, under its lock. In a ``with`` statement it succeeds, or fails with the exception.

    An attempt without an outcome counts as failed.
    """

    def __init__(self, name: str, servers: Servers, stream: Stream) -> None:
        super().__init__(name, servers, stream)
        #: The number of the attempt in its period, from 1.
        self.number: int = stream.line["attempt"]

    def succeeded(self) -> None:
        """Records the success, before the release. Raises :class:`Lost` if the lock is lost: the attempt then counts as failed."""
        self._record("succeeded", None)

    def failed(self, reason: str) -> None:
        """Records the failure, before the release. Raises :class:`Lost` if the lock is lost."""
        self._record("failed", reason)

    def _record(self, outcome: str, reason: Optional[str]) -> None:
        self.ensure_held()
        body = {"fencing_token": self.fencing_token, "outcome": outcome, "reason": reason}
        self._servers.post(f"/v1/jobs/{quote(self.name, safe='')}/outcome", body)

    def _end(self, error: Optional[BaseException]) -> None:
        try:
            if error is None:
                self.succeeded()
            elif self.is_held:
                # Without an outcome, it counts as failed, too.
                with contextlib.suppress(PolylockError):
                    self.failed(f"{type(error).__name__}: {error}")
        finally:
            self.release()

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._end(error)
