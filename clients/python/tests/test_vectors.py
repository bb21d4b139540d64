"""The vectors that all clients share: see clients/README.md. The variable POLYLOCK_VECTORS names the file."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, Optional

from polylock_client import Attempt, Client, Held, Lock, Lost, NotAcquired, Refused, Unavailable
from polylock_client._clock import ServerClock
from test_client import Server

ERRORS = {"lost": Lost, "not-acquired": NotAcquired, "refused": Refused, "unavailable": Unavailable}

with open(os.environ.get("POLYLOCK_VECTORS", "vectors.json"), encoding="utf-8") as file:
    VECTORS = json.load(file)


class Background(threading.Thread):
    """An acquisition in the background."""

    def __init__(self, lock: Lock) -> None:
        super().__init__(daemon=True)
        self.lock = lock
        self.held: Optional[Held] = None
        self.at = 0.0

    def run(self) -> None:
        self.held = self.lock.acquire()
        self.at = time.monotonic()


class Vectors(unittest.TestCase):
    def test_deadlines(self) -> None:
        for vector in VECTORS["deadlines"]:
            with self.subTest(vector):
                if vector.get("error"):
                    with self.assertRaises(ValueError):
                        ServerClock(0, vector["clock"]).deadline(vector["until"])
                else:
                    lasts = ServerClock(0, vector["clock"]).deadline(vector["until"])
                    self.assertEqual(int(round(lasts * 1000, 6)), vector["lasts_ms"])

    def test_scenarios(self) -> None:
        for scenario in VECTORS["scenarios"]:
            with self.subTest(scenario["name"]):
                Scenario(self, scenario["steps"])


class Scenario:
    def __init__(self, case: unittest.TestCase, steps: list[dict[str, Any]]) -> None:
        self.case = case
        self.held: dict[str, Held] = {}
        self.slots: dict[str, int] = {}
        self.attempts: dict[str, Background] = {}
        self.lost_at: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as self.directory:
            self.server = Server(self.directory)
            self.locks = Client(self.server.url)
            try:
                for step in steps:
                    kind = next(iter(step))
                    # The names of these steps have another meaning here.
                    method = f"{kind}_" if kind in ("held", "break", "server") else kind
                    getattr(self, method)(step, step[kind])
            finally:
                self.server.process.send_signal(signal.SIGCONT)
                self.server.end()

    def lock_of(self, step: dict[str, Any], name: str) -> Lock:
        times = {key: step[f"{key}_ms"] / 1000 for key in ("ttl", "wait") if f"{key}_ms" in step}
        texts = {key: step[key] for key in ("mode", "label", "also") if key in step}
        if step.get("campaign"):
            return self.locks.campaign(step["lock"], **times, **texts)
        if "slots" in step:
            self.slots[name] = step["slots"]
            return self.locks.semaphore(step["lock"], step["slots"], **times, **texts)
        return self.locks.lock(step["lock"], **times, **texts)

    def acquire(self, step: dict[str, Any], name: str) -> None:
        lock = self.lock_of(step, name)
        if "error" in step:
            with self.case.assertRaises(ERRORS[step["error"]]):
                lock.acquire()
        else:
            self.held[name] = lock.acquire()

    def once(self, step: dict[str, Any], name: str) -> None:
        settings = {key: step[f"{key}_ms"] / 1000 for key in ("every", "ttl", "wait") if f"{key}_ms" in step}
        begin = lambda: self.locks.once(step["job"], retries=step.get("retries", 0), **settings)  # noqa: E731
        if "error" in step:
            with self.case.assertRaises(ERRORS[step["error"]]):
                begin()
            return
        attempt = begin()
        self.case.assertEqual(0 if attempt is None else attempt.number, step["attempt"])
        if attempt is not None:
            self.held[name] = attempt

    def succeed(self, step: dict[str, Any], name: str) -> None:
        self.record(step, self.attempt(name).succeeded)

    def fail(self, step: dict[str, Any], name: str) -> None:
        self.record(step, lambda: self.attempt(name).failed(step["because"]))

    def attempt(self, name: str) -> Attempt:
        attempt = self.held[name]
        assert isinstance(attempt, Attempt)
        return attempt

    def record(self, step: dict[str, Any], record: Callable[[], None]) -> None:
        if "error" in step:
            with self.case.assertRaises(ERRORS[step["error"]]):
                record()
        else:
            record()

    def tokens(self, step: dict[str, Any], name: str) -> None:
        self.case.assertEqual(sorted(self.held[name].fencing_tokens), step["of"])

    def begin(self, step: dict[str, Any], name: str) -> None:
        self.attempts[name] = Background(self.lock_of(step, name))
        self.attempts[name].start()

    def waits(self, _: dict[str, Any], name: str) -> None:
        self.case.assertTrue(self.attempts[name].is_alive())

    def finish(self, step: dict[str, Any], name: str) -> None:
        self.attempts[name].join(step["within_ms"] / 1000)
        held = self.attempts[name].held
        assert held is not None, f"{name} is not granted"
        self.held[name] = held

    def held_(self, _: dict[str, Any], name: str) -> None:
        self.held[name].ensure_held()
        self.case.assertTrue(self.held[name].is_held and not self.held[name].lost.is_set())

    def ended(self, _: dict[str, Any], name: str) -> None:
        with self.case.assertRaises(Lost):
            self.held[name].ensure_held()
        self.case.assertFalse(self.held[name].is_held)

    def lost(self, step: dict[str, Any], name: str) -> None:
        self.case.assertTrue(self.held[name].lost.wait(step["within_ms"] / 1000))
        self.lost_at[name] = time.monotonic()
        self.case.assertEqual(self.held[name].reason, step["reason"])
        self.ended(step, name)

    def release(self, _: dict[str, Any], name: str) -> None:
        self.held[name].release()

    def token(self, step: dict[str, Any], name: str) -> None:
        self.case.assertGreater(self.held[name].fencing_token, self.held[step["above"]].fencing_token)

    def other_slot(self, step: dict[str, Any], name: str) -> None:
        slots = {self.held[one].slot for one in (name, step["than"])}
        self.case.assertTrue(len(slots) == 2 and slots <= set(range(self.slots[name])), slots)

    def after_loss(self, step: dict[str, Any], name: str) -> None:
        self.case.assertGreater(self.attempts[name].at, self.lost_at[step["of"]])

    def break_(self, _: dict[str, Any], name: str) -> None:
        self.case.assertEqual(self.server.polylock("break", name, "--yes"), 0)

    def server_(self, _: dict[str, Any], action: str) -> None:
        if action == "kill":
            self.server.end()
        elif action == "start":
            self.server = Server(self.directory, listen=self.server.url.rpartition("/")[2])
        else:
            self.server.process.send_signal(signal.SIGSTOP if action == "stop" else signal.SIGCONT)

    def pause_ms(self, _: dict[str, Any], ms: int) -> None:
        time.sleep(ms / 1000)


if __name__ == "__main__":
    unittest.main()
