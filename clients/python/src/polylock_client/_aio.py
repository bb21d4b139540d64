"""The client for asyncio: the synchronous one, in threads."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Callable, Coroutine, Optional, TypeVar

from ._client import Client, Lock
from ._errors import Lost
from ._held import Attempt, Held

T = TypeVar("T")
H = TypeVar("H", bound=Optional[Held])


class AsyncClient:
    """The lock service at one of these URLs, for asyncio. The settings are those of :class:`Client`."""

    def __init__(self, *urls: str, **settings: Any) -> None:
        self._client = Client(*urls, **settings)

    def lock(self, name: str, **settings: Any) -> AsyncLock:
        """Returns the lock ``name``, to be acquired. The settings are those of :meth:`Client.lock`."""
        return AsyncLock(self._client.lock(name, **settings))

    def semaphore(self, name: str, slots: int, **settings: Any) -> AsyncLock:
        """Returns the semaphore ``name``, of which a slot is to be acquired. See :meth:`Client.semaphore`."""
        return AsyncLock(self._client.semaphore(name, slots, **settings))

    def campaign(self, name: str, **settings: Any) -> AsyncLock:
        """Returns the lock of the leader in the election ``name``, to be acquired. See :meth:`Client.campaign`."""
        return AsyncLock(self._client.campaign(name, **settings))

    async def once(self, name: str, **settings: Any) -> Optional[AsyncAttempt]:
        """Begins an attempt of the job ``name``; ``None`` if it is not due. See :meth:`Client.once`."""
        attempt = await _acquired(lambda: self._client.once(name, **settings))
        return None if attempt is None else AsyncAttempt(attempt)


class AsyncLock:
    """A lock to be acquired: ``await acquire()``, or an ``async with`` statement."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._held: Optional[AsyncHeld] = None

    async def acquire(self) -> AsyncHeld:
        """Waits for the lock. A cancelled wait releases it if it was granted meanwhile."""
        return AsyncHeld(await _acquired(self._lock.acquire))

    async def __aenter__(self) -> AsyncHeld:
        self._held = await self.acquire()
        return self._held

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        held, self._held = self._held, None
        assert held is not None
        await _in_thread(lambda: held._held._leave(kind))


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

    threading.Thread(target=run, name="polylock acquire", daemon=True).start()
    return result


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        # The loop has ended.
        pass


async def _acquired(acquire: Callable[[], H]) -> H:
    """Calls ``acquire`` in a thread. If the wait is cancelled, its result is released."""
    acquiring = _in_thread(acquire)
    try:
        return await asyncio.shield(acquiring)
    except asyncio.CancelledError:
        acquiring.add_done_callback(_release)
        raise


def _release(acquiring: asyncio.Future[H]) -> None:
    if not acquiring.cancelled() and acquiring.exception() is None:
        held = acquiring.result()
        if held is not None:
            threading.Thread(target=held.release, name="polylock release", daemon=True).start()


class AsyncHeld:
    """A lock that is held, until ``release()`` or its loss. See :class:`Held`."""

    def __init__(self, held: Held) -> None:
        self._held = held
        #: Set when the lock is lost, at the deadline at the latest.
        self.lost = asyncio.Event()
        loop = asyncio.get_running_loop()
        held._call_on_loss(lambda: _call_in(loop, self.lost.set))

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
        """Runs ``work``, and cancels it when the lock is lost; then raises :class:`Lost`."""
        task, lost = asyncio.ensure_future(work), asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                raise Lost.of(self._held.name, self.reason or "deadline")
            return task.result()
        finally:
            lost.cancel()
            task.cancel()


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
