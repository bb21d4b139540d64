"""Locks through the lock service of polylock, with fencing tokens and a signal of loss."""

from ._aio import AsyncClient, AsyncHeld, AsyncLock
from ._client import Client, Held, Lock
from ._errors import Lost, NotAcquired, PolylockError, Refused, Unavailable

__all__ = [
    "AsyncClient",
    "AsyncHeld",
    "AsyncLock",
    "Client",
    "Held",
    "Lock",
    "Lost",
    "NotAcquired",
    "PolylockError",
    "Refused",
    "Unavailable",
]
