"""The clock of deadlines, and the deadline of a hold."""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Returns seconds of a clock that goes on while the machine is suspended, where there is one."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class ServerClock:
    """The clock of a server, from the header of the reply to a request.

    The request was sent at ``sent``, and the header contains the time ``clock_us`` of the server, which is later. So a lease until ``until``, by the clock of
    the server, lasts for at least ``until - clock_us`` from ``sent``, less the drift between the two clocks.
    """

    DRIFT = 1 / 1000

    def __init__(self, sent: float, header: str) -> None:
        self.sent = sent
        self.server, self.clock_us = _parse(header)

    def deadline(self, until: str) -> float:
        """Returns the time, by :func:`now`, at which a lease ends at the earliest."""
        server, until_us = _parse(until)
        if server != self.server:
            raise ValueError("a time of another server")
        lasts = (until_us - self.clock_us) / 1e6
        return self.sent + lasts - max(lasts, 0.0) * self.DRIFT


def _parse(text: str) -> tuple[str, int]:
    server, _, us = text.partition(";")
    return server, int(us)
