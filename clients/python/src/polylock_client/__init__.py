"""Locks through the lock service of polylock, with fencing tokens and a signal of loss."""

from ._aio import AsyncAttempt, AsyncClient, AsyncHeld, AsyncLock
from ._client import Client, Lock
from ._errors import Lost, NotAcquired, PolylockError, Refused, Unavailable
from ._held import Attempt, Held

__all__ = [
    "AsyncAttempt",
    "AsyncClient",
    "AsyncHeld",
    "AsyncLock",
    "Attempt",
    "Client",
    "Held",
    "Lock",
    "Lost",
    "NotAcquired",
    "PolylockError",
    "Refused",
    "Unavailable",
]
