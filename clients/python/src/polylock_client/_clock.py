"""The clock of deadlines, and the deadline of a hold."""

from __future__ import annotations

import time
from typing import Optional

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


class Clocks:
    """The clocks of the servers in their last replies, by which messages expire: a server refuses one that arrives after its client has given it up.

    At the time of its reply, the clock of a server shows at least the time in the header.
    """

    #: The number of servers that are remembered.
    KEPT = 8

    def __init__(self) -> None:
        self._latest: dict[str, tuple[float, int]] = {}

    def observe(self, header: Optional[str]) -> None:
        """Records the clock of a server from a reply that has just arrived."""
        if header is not None:
            server, clock_us = _parse(header)
            self._latest.pop(server, None)
            self._latest[server] = (now(), clock_us)
            for oldest in list(self._latest)[: -self.KEPT]:
                self._latest.pop(oldest, None)

    def expires(self, limit: float) -> Optional[str]:
        """Returns the header of a message that is given up after ``limit`` seconds, for whichever server receives it; ``None`` before the first reply."""
        at = now()
        times = (
            f"{server};{clock_us + int(((at - received) * (1 - ServerClock.DRIFT) + limit) * 1e6)}"
            for server, (received, clock_us) in list(self._latest.items())
        )
        return ", ".join(times) or None


def _parse(text: str) -> tuple[str, int]:
    server, _, us = text.partition(";")
    return server, int(us)
