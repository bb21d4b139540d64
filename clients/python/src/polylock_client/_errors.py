"""The errors of the client, by their remedy."""

from __future__ import annotations

from typing import Any, Mapping


class PolylockError(Exception):
    """The base of all errors."""


class NotAcquired(PolylockError):
    """Another request holds the lock, and the time to wait is over. This is no fault."""


class Lost(PolylockError):
    """The lock was held and is lost: stop the work that it protected."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        #: The reason, as one word.
        self.reason = reason

    @classmethod
    def of(cls, name: str, reason: str) -> Lost:
        return cls(f"lock {name} lost: {reason}", reason)


class Unavailable(PolylockError):
    """No server, or not its store, can be reached for the moment. A later attempt may succeed."""


class Refused(PolylockError):
    """The server has refused the request: correct the name, the settings or the rights."""


def of_problem(problem: Mapping[str, Any]) -> PolylockError:
    """Returns the error for problem details (RFC 9457)."""
    word = str(problem.get("type", "")).rpartition(":")[2]
    text = str(problem.get("detail") or problem.get("title") or "the server has failed")
    if word == "busy":
        return NotAcquired(text)
    if word == "lost":
        return Lost(text, str(problem.get("reason") or "gone"))
    if word == "unavailable" or problem.get("status") in (429, 502, 503, 504):
        return Unavailable(text)
    return Refused(text)
