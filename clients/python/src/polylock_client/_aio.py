"""The client for asyncio: the synchronous one, in threads."""

from __future__ import annotations

import asyncio
import ssl
import threading
from types import TracebackType
from typing import Any, Callable, Coroutine, Iterable, Optional, TypeVar

from ._client import Client, Lock
from ._errors import Lost
from ._held import Attempt, Entered, Held
from ._servers import SILENCE, Seconds, Wait

T = TypeVar("T")
H = TypeVar("H", bound=Optional[Held])


class AsyncClient:
    """The lock service at one of these URLs, for asyncio. The settings are those of :class:`Client`."""

    def __init__(
        self,
        *urls: str,
        token: Optional[str] = None,
        connect_timeout: Seconds = 5,
        silence: Seconds = SILENCE,
        context: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._client = Client(*urls, token=token, connect_timeout=connect_timeout, silence=silence, context=context)

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
    ) -> AsyncLock:
        """Returns the lock ``name``, to be acquired. The settings are those of :meth:`Client.lock`."""
        return AsyncLock(self._client.lock(name, also=also, mode=mode, ttl=ttl, wait=wait, owner=owner, label=label))

    def semaphore(
        self,
        name: str,
        slots: int,
        *,
        ttl: Optional[Seconds] = None,
        wait: Optional[Seconds] = None,
        owner: Optional[str] = None,
        label: Optional[str] = None,
    ) -> AsyncLock:
        """Returns the semaphore ``name``, of which a slot is to be acquired. See :meth:`Client.semaphore`."""
        return AsyncLock(self._client.semaphore(name, slots, ttl=ttl, wait=wait, owner=owner, label=label))

    def campaign(
        self,
        name: str,
        *,
        ttl: Optional[Seconds] = None,
        owner: Optional[str] = None,
        label: Optional[str] = None,
    ) -> AsyncLock:
        """Returns the lock of the leader in the election ``name``, to be acquired. See :meth:`Client.campaign`."""
        return AsyncLock(self._client.campaign(name, ttl=ttl, owner=owner, label=label))

    async def once(
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
    ) -> Optional[AsyncAttempt]:
        """Begins an attempt of the job ``name``; ``None`` if it is not due. See :meth:`Client.once`."""

        def begin(waiting: Wait) -> Optional[Attempt]:
            return self._client._once(
                waiting, name, every=every, at=at, retries=retries, ttl=ttl, wait=wait, owner=owner, label=label
            )

        attempt = await _acquired(begin)
        return None if attempt is None else AsyncAttempt(attempt)


class AsyncLock:
    """A lock to be acquired: ``await acquire()``, or an ``async with`` statement.

    Tasks may share it: each acquisition is a request and a hold of its own.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._entered: Entered[AsyncHeld] = Entered(lock._name)

    async def acquire(self) -> AsyncHeld:
        """Waits for the lock. A cancelled wait is withdrawn at once, and a lock that it was granted meanwhile is released."""
        return AsyncHeld(await _acquired(self._lock._acquire))

    async def __aenter__(self) -> AsyncHeld:
        return self._entered.enter(asyncio.current_task(), await self.acquire())

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        held = self._entered.leave(asyncio.current_task())._held
        await _in_thread(lambda: held._leave(kind))


def _in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Calls a function in a thread of its own: waits in a pool of threads would block each other."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def deliver(value: Optional[T], error: Optional[BaseException]) -> None:
        if not result.cancelled():
            if error is None:
                result.set_result(value)  # type: ignore[arg-type]
            else:
                result.set_exception(error)

    def run() -> None:
        value: Optional[T] = None
        failure: Optional[BaseException] = None
        try:
            value = call()
        except BaseException as error:
            failure = error
        _call_in(loop, lambda: deliver(value, failure))

    threading.Thread(target=run, name="polylock", daemon=True).start()
    return result


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        # The loop has ended.
        pass


class _Acquisition:
    """An acquisition in a thread: its hold belongs to the task that waits, or is released."""

    def __init__(self) -> None:
        self.waiting = Wait()
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._held: Optional[Held] = None

    def run(self, acquire: Callable[[Wait], H]) -> H:
        held = acquire(self.waiting)
        with self._lock:
            self._held = held
            is_abandoned = self._is_abandoned
        if is_abandoned and held is not None:
            held.release()
        return held

    def abandon(self) -> None:
        """Withdraws the request, and releases the lock if it is granted."""
        with self._lock:
            self._is_abandoned = True
            held = self._held
        self.waiting.withdraw()
        if held is not None:
            threading.Thread(target=held.release, name="polylock release", daemon=True).start()


async def _acquired(acquire: Callable[[Wait], H]) -> H:
    """Calls ``acquire`` in a thread. If the wait is cancelled, or its loop ends, the request is withdrawn."""
    acquisition = _Acquisition()
    acquiring = _in_thread(lambda: acquisition.run(acquire))
    try:
        return await asyncio.shield(acquiring)
    except BaseException:
        # An error of the acquisition itself leaves nothing.
        acquisition.abandon()
        if acquiring.done():
            _notice(acquiring)
        else:
            acquiring.add_done_callback(_notice)
        raise


def _notice(ended: asyncio.Future[Any]) -> None:
    """Notes the error of a call whose caller has gone, which would be reported as forgotten."""
    if not ended.cancelled():
        ended.exception()


class AsyncHeld:
    """A lock that is held, until ``release()`` or its loss. See :class:`Held`."""

    def __init__(self, held: Held) -> None:
        self._held = held
        #: Set when the lock is lost, at the deadline at the latest.
        self.lost = asyncio.Event()
        loop, lost = asyncio.get_running_loop(), self.lost
        # Without a reference to this object: one that is forgotten is noticed.
        held._hold.call_on_loss(lambda: _call_in(loop, lost.set))

    @property
    def fencing_token(self) -> int:
        """The fencing token, greater than all earlier ones of this lock."""
        return self._held.fencing_token

    @property
    def fencing_tokens(self) -> dict[str, int]:
        """The fencing token of each lock by its name, if there are several."""
        return self._held.fencing_tokens

    @property
    def slot(self) -> Optional[int]:
        """The number of the slot of a semaphore, from 0; ``None`` for a lock."""
        return self._held.slot

    @property
    def remaining(self) -> float:
        """The seconds until the deadline, unless the lock is renewed before."""
        return self._held.remaining

    @property
    def is_held(self) -> bool:
        """True before the deadline, and before a loss or the release."""
        return self._held.is_held

    @property
    def reason(self) -> Optional[str]:
        """The reason for the loss, as one word."""
        return self._held.reason

    def ensure_held(self) -> None:
        """Raises :class:`Lost` if the lock is not held, before a side effect."""
        self._held.ensure_held()

    async def release(self) -> None:
        """Releases the lock. It may be called again. See :meth:`Held.release`."""
        await _in_thread(self._held.release)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work``, and cancels it when the lock is lost; then raises :class:`Lost`.

        It returns when ``work`` has ended, also if it is cancelled itself: until then, the lock must not be released.
        """
        task, lost = asyncio.ensure_future(work), asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Lost.of(self._held.name, self.reason or "deadline")
        finally:
            lost.cancel()
            await _ended(task)


async def _ended(task: asyncio.Future[Any]) -> None:
    """Cancels ``task``, and waits for its end, however often the caller is cancelled meanwhile."""
    cancelled = False
    while not task.done():
        task.cancel()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    _notice(task)
    if cancelled:
        raise asyncio.CancelledError


class AsyncAttempt(AsyncHeld):
    """An attempt of a job that is due. In an ``async with`` statement it succeeds, or fails with the exception. See :class:`Attempt`."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt)
        self._attempt = attempt

    @property
    def number(self) -> int:
        """The number of the attempt in its period, from 1."""
        return self._attempt.number

    async def succeeded(self) -> None:
        """Records the success, before the release."""
        await _in_thread(self._attempt.succeeded)

    async def failed(self, reason: str) -> None:
        """Records the failure, before the release."""
        await _in_thread(lambda: self._attempt.failed(reason))

    async def __aenter__(self) -> AsyncAttempt:
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await _in_thread(lambda: self._attempt._end(error))
