"""The client against a real server. The variable POLYLOCK_PROGRAM names the command."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
import warnings
from typing import Sequence
from unittest import mock

from polylock_client import AsyncClient, AsyncHeld, Client, Lost, NotAcquired, Refused, Unavailable, _clock, _held, _servers

PROGRAM = os.environ.get("POLYLOCK_PROGRAM", "polylock")


class Server:
    """A server in front of a SQLite file."""

    def __init__(self, directory: str, options: Sequence[str] = (), listen: str = "127.0.0.1:0") -> None:
        self.store = f"sqlite://{directory}/locks.db"
        arguments = [PROGRAM, "serve", "-S", self.store, "--listen", listen, *options]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def polylock(self, *arguments: str) -> int:
        return subprocess.run([PROGRAM, *arguments, "-S", self.store], stdout=subprocess.DEVNULL).returncode

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Case(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.server = Server(self.directory)
        self.addCleanup(self.server.end)
        self.locks = Client(self.server.url)

    def child(self, script: str) -> subprocess.Popen[str]:
        """Runs a program with the URL of the server as its argument, and pipes."""
        arguments = [sys.executable, "-c", script, self.server.url]
        return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def test_a_client_continues_with_the_next_server(self) -> None:
        dead = Server(self.directory)
        dead.end()
        with Client(dead.url, self.server.url).lock("n") as held:
            self.assertTrue(held.is_held)
        with self.assertRaises(Unavailable):
            Client(dead.url).lock("n").acquire()

    def test_a_waiter_continues_with_the_next_server_if_its_own_is_stopped(self) -> None:
        other = Server(self.directory)
        self.addCleanup(other.end)
        first = Client(other.url).lock("n").acquire()
        waited: list[object] = []
        # More than the time between two lines of a server.
        locks = Client(self.server.url, other.url, silence=6)
        waiting = threading.Thread(target=lambda: waited.append(locks.lock("n").acquire()))
        waiting.start()
        time.sleep(0.3)
        self.server.process.send_signal(signal.SIGSTOP)
        time.sleep(7)
        first.release()
        # The place in the queue of the request that was given up is kept for some seconds.
        waiting.join(15)
        self.server.process.send_signal(signal.SIGCONT)
        self.assertEqual([type(held).__name__ for held in waited], ["Held"])
        waited[0].release()  # type: ignore[attr-defined]

    def test_a_release_continues_with_the_next_server_if_its_own_is_stopped(self) -> None:
        other = Server(self.directory)
        self.addCleanup(other.end)
        held = Client(self.server.url, other.url).lock("n").acquire()
        self.server.process.send_signal(signal.SIGSTOP)
        releasing = threading.Thread(target=held.release)
        releasing.start()
        # Less than the lease.
        Client(other.url).lock("n", wait=10).acquire().release()
        releasing.join()
        self.server.process.send_signal(signal.SIGCONT)

    def test_a_stopped_server_delays_one_request(self) -> None:
        stopped = Server(self.directory)
        self.addCleanup(stopped.end)
        stopped.process.send_signal(signal.SIGSTOP)
        locks = Client(stopped.url, self.server.url)
        locks.lock("n").acquire().release()
        begin = time.monotonic()
        for _ in range(10):
            locks.lock("n").acquire().release()
        # Five seconds for each request to the stopped one.
        self.assertLess(time.monotonic() - begin, 10)

    def test_the_time_to_wait_holds_for_all_servers_together(self) -> None:
        first = self.locks.lock("n").acquire()
        stopped = Server(self.directory)
        self.addCleanup(stopped.end)
        stopped.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        with self.assertRaises(NotAcquired):
            Client(stopped.url, self.server.url, silence=1).lock("n", wait=1.5).acquire()
        self.assertLess(time.monotonic() - begin, 2.5)
        with self.assertRaises(Unavailable):
            Client(stopped.url, silence=0.5).lock("n").acquire()
        first.release()

    def test_a_long_hold_reads_the_clock_of_its_server_again(self) -> None:
        # Clocks that may differ by half: without another look, the hold would end after two seconds.
        with mock.patch.object(_servers.ServerClock, "DRIFT", 0.5), mock.patch.object(_held, "RENEWAL_AGE", 0.2):
            with self.locks.lock("n", ttl=2) as held:
                time.sleep(6)
                self.assertTrue(held.is_held)

    def test_a_caller_has_the_rights_of_its_token(self) -> None:
        access = os.path.join(self.directory, "access.toml")
        digest = hashlib.sha256(b"secret").hexdigest()
        with open(access, "w") as file:
            file.write(
                f'[[caller]]\nname = "test"\ntoken_sha256 = "{digest}"\n'
                'allow = [{ prefix = "a/", rights = ["exclusive"] }]\n'
            )
        server = Server(self.directory, options=["--access", access])
        self.addCleanup(server.end)
        with Client(server.url, token="secret").lock("a/1") as held:
            self.assertTrue(held.is_held)
        for locks, name in ((Client(server.url, token="secret"), "b"), (Client(server.url, token="x"), "a/1"), (Client(server.url), "a/1")):
            with self.assertRaises(Refused):
                locks.lock(name).acquire()

    def test_a_message_for_another_server_is_sent_again_with_the_clock_of_this_one(self) -> None:
        clocks = self.locks._servers._clocks
        clocks.observe("00000000000000ab;1000000")
        with self.locks.lock("n", wait=0):
            self.assertIsNotNone(clocks.expires(5))
        # The release, which has an expiry by both clocks, was carried out.
        self.locks.lock("n", wait=0).acquire().release()

    def test_the_expiry_is_that_of_the_server_or_earlier(self) -> None:
        clocks = _clock.Clocks()
        self.assertIsNone(clocks.expires(1))
        with mock.patch.object(_clock, "now", return_value=100.0):
            for server in range(10):
                clocks.observe(f"{server};1000000")
        with mock.patch.object(_clock, "now", return_value=110.0):
            times = (clocks.expires(2) or "").split(", ")
        self.assertEqual(times, [f"{server};12990000" for server in range(2, 10)])

    def test_a_url_is_that_of_a_server_with_the_port_of_the_service(self) -> None:
        for url in ("ftp://h", "127.0.0.1:7420", "h", "http://", "http://h/locks", "http://h?x=1", "http://u:secret@h", "http://h:x"):
            with self.assertRaises(ValueError) as refused:
                Client(url)
            self.assertNotIn("secret", str(refused.exception))
        for url, server in (
            ("http://h", "http://h:7420"),
            ("https://h/", "https://h:7420"),
            ("http://h:80", "http://h:80"),
            ("https://[::1]", "https://[::1]:7420"),
        ):
            self.assertEqual(_servers.server(url), server)

    def test_increments_of_eight_processes_are_exact(self) -> None:
        path, times = os.path.join(self.directory, "number"), 25
        with open(path, "w") as file:
            file.write("0")
        script = (
            "import sys\n"
            "from polylock_client import Client\n"
            "locks, path = Client(sys.argv[1]), sys.argv[2]\n"
            f"for _ in range({times}):\n"
            "    with locks.lock('number'):\n"
            "        number = int(open(path).read())\n"
            "        open(path, 'w').write(str(number + 1))\n"
        )
        arguments = [sys.executable, "-c", script, self.server.url, path]
        processes = [subprocess.Popen(arguments) for _ in range(8)]
        self.assertEqual([process.wait(60) for process in processes], [0] * 8)
        with open(path) as file:
            self.assertEqual(file.read(), str(8 * times))

    def test_asyncio_cancels_the_work_of_a_lost_lock(self) -> None:
        async def main() -> None:
            locks = AsyncClient(self.server.url)
            async with locks.lock("n") as held:
                self.assertEqual(await held.run(asyncio.sleep(0.01, 7)), 7)
                with self.assertRaises(NotAcquired):
                    await locks.lock("n", wait=0).acquire()
            held = await locks.lock("n", ttl=1).acquire()
            self.server.process.send_signal(signal.SIGSTOP)
            with self.assertRaises(Lost):
                await held.run(asyncio.sleep(60))
            self.assertTrue(held.lost.is_set() and not held.is_held)
            self.server.process.send_signal(signal.SIGCONT)
            await held.release()

        asyncio.run(main())

    def test_a_cancelled_wait_leaves_nothing(self) -> None:
        async def main() -> None:
            locks = AsyncClient(self.server.url)
            first = await locks.lock("n").acquire()
            waiting = asyncio.ensure_future(locks.lock("n").acquire())
            await asyncio.sleep(0.3)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            await first.release()
            last = await asyncio.wait_for(locks.lock("n").acquire(), 10)
            await last.release()

        asyncio.run(main())

    def test_threads_share_a_lock_object(self) -> None:
        slots = self.locks.semaphore("gpu", 2)
        inside, leave = ([threading.Event(), threading.Event()] for _ in range(2))
        seen: dict[int, bool] = {}

        def work(number: int) -> None:
            with slots as held:
                inside[number].set()
                leave[number].wait()
                seen[number] = held.is_held

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread, entered in zip(threads, inside):
            thread.start()
            entered.wait()
        leave[0].set()
        threads[0].join()
        # The slot of the first one is free, and that of the second one is not.
        free = self.locks.semaphore("gpu", 2, wait=0).acquire()
        with self.assertRaises(NotAcquired):
            self.locks.semaphore("gpu", 2, wait=0).acquire()
        leave[1].set()
        threads[1].join()
        self.assertEqual(seen, {0: True, 1: True})
        free.release()

    def test_the_end_of_a_lost_hold_does_not_release_the_next_one(self) -> None:
        lock, broken, done = self.locks.lock("x"), threading.Event(), threading.Event()
        errors: list[str] = []

        def first() -> None:
            try:
                with lock as held:
                    broken.set()
                    held.lost.wait()
                    second.wait()
            except Lost as lost:
                errors.append(lost.reason)
            done.set()

        second = threading.Event()
        threading.Thread(target=first).start()
        broken.wait()
        self.assertEqual(self.server.polylock("break", "x", "--force", "--yes"), 0)
        with lock as held:
            second.set()
            done.wait()
            self.assertTrue(held.is_held)
            with self.assertRaises(NotAcquired):
                self.locks.lock("x", wait=0).acquire()
        self.assertEqual(errors, ["broken"])

    def test_a_with_statement_may_be_left_by_another_thread(self) -> None:
        lock = self.locks.lock("n")
        lock.__enter__()
        leaving = threading.Thread(target=lock.__exit__, args=(None, None, None))
        leaving.start()
        leaving.join()
        self.locks.lock("n", wait=0).acquire().release()
        with self.assertRaises(RuntimeError):
            lock.__exit__(None, None, None)

    def test_a_forgotten_hold_is_reported_and_released(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.locks.lock("n").acquire()
            gc.collect()
        self.assertEqual([(it.category, "lock n was not released" in str(it.message)) for it in caught], [(ResourceWarning, True)])
        # Long before its lease ends.
        self.locks.lock("n", wait=5).acquire().release()

    def test_a_child_process_does_not_release_the_lock(self) -> None:
        script = (
            "import os, sys\n"
            "from polylock_client import Client, Lost\n"
            "with Client(sys.argv[1]).lock('n') as held:\n"
            "    child = os.fork()\n"
            "    if child == 0:\n"
            "        try:\n"
            "            held.ensure_held()\n"
            "        except Lost as lost:\n"
            "            held.release()\n"
            "            os._exit(7 if lost.reason == 'fork' else 1)\n"
            "    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
            "    print(code, flush=True)\n"
            "    sys.stdin.readline()\n"
        )
        with self.child(script) as child:
            assert child.stdin is not None and child.stdout is not None
            self.assertEqual(child.stdout.readline(), "7\n")
            with self.assertRaises(NotAcquired):
                self.locks.lock("n", wait=0).acquire()
            child.stdin.write("\n")
        self.assertEqual(child.returncode, 0)

    def test_the_lock_of_a_stopped_client_is_free_a_lease_after_its_last_renewal(self) -> None:
        script = (
            "import sys, time\n"
            "from polylock_client import Client\n"
            "held = Client(sys.argv[1]).lock('n', ttl=2).acquire()\n"
            "time.sleep(3)\n"
            "held.ensure_held()\n"
            "print('held', flush=True)\n"
            "held.lost.wait()\n"
            "print('lost', flush=True)\n"
            "sys.stdin.readline()\n"
        )
        with self.child(script) as child:
            assert child.stdin is not None and child.stdout is not None
            self.assertEqual(child.stdout.readline(), "held\n")
            child.send_signal(signal.SIGSTOP)
            try:
                # Its connection stays open.
                self.locks.lock("n", wait=3).acquire().release()
            finally:
                child.send_signal(signal.SIGCONT)
            self.assertEqual(child.stdout.readline(), "lost\n")
            child.stdin.write("\n")

    def test_a_hold_stays_with_the_server_of_its_stream(self) -> None:
        other = Server(self.directory)
        self.addCleanup(other.end)
        held = Client(self.server.url, other.url).lock("n", ttl=4).acquire()
        # The other requests use another server from now on.
        held._servers._used = 1
        time.sleep(5)
        held.ensure_held()
        # One reads the stream, which would have ended with the lease, and one watches the deadline.
        threads = [thread for thread in threading.enumerate() if thread.name == "polylock n"]
        self.assertGreaterEqual(len(threads), 2)
        held.release()

    def test_the_owner_is_this_process_unless_it_states_another(self) -> None:
        def owner() -> object:
            with urllib.request.urlopen(f"{self.server.url}/v1/locks/n") as reply:
                return json.load(reply)["holders"][0]["owner"]

        with self.locks.lock("n"):
            self.assertEqual(owner(), f"{socket.gethostname()}:{os.getpid()}")
        with self.locks.lock("n", owner="billing"):
            self.assertEqual(owner(), "billing")

    def test_a_release_is_repeated_while_no_server_can_be_reached(self) -> None:
        held = self.locks.lock("n").acquire()
        self.server.process.send_signal(signal.SIGSTOP)
        held.release()
        self.server.process.send_signal(signal.SIGCONT)
        # Long before its lease ends.
        self.locks.lock("n", wait=8).acquire().release()

    def test_a_time_that_is_none_is_refused(self) -> None:
        for time_limit in ("5s", True, None):
            with self.assertRaises(TypeError):
                self.locks.once("n", every=time_limit)  # type: ignore[arg-type]
        for seconds in (float("inf"), float("nan"), -1):
            with self.assertRaises(ValueError):
                self.locks.lock("n", ttl=seconds)
        with self.assertRaises(TypeError):
            AsyncClient(self.server.url, tokn="x")  # type: ignore[call-arg]

    def test_a_wait_of_asyncio_is_withdrawn_at_once_and_when_its_loop_ends(self) -> None:
        first = self.locks.lock("n").acquire()

        async def cancelled() -> None:
            locks = AsyncClient(self.server.url)
            waits = [asyncio.ensure_future(locks.lock("n").acquire()) for _ in range(10)]
            await asyncio.sleep(0.5)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

        async def ended() -> None:
            asyncio.ensure_future(AsyncClient(self.server.url).lock("n").acquire())
            await asyncio.sleep(0.5)

        asyncio.run(cancelled())
        asyncio.run(ended())
        end = time.monotonic() + 3
        while time.monotonic() < end and any(thread.name == "polylock" for thread in threading.enumerate()):
            time.sleep(0.01)
        self.assertEqual([thread for thread in threading.enumerate() if thread.name == "polylock"], [])
        first.release()
        self.locks.lock("n", wait=0.5).acquire().release()

    def test_a_grant_of_asyncio_that_nobody_takes_is_released(self) -> None:
        async def main() -> None:
            locks = AsyncClient(self.server.url)
            other = await locks.lock("b").acquire()
            # The hold of the one is dropped with the failure of the other.
            with self.assertWarns(ResourceWarning):
                with self.assertRaises(NotAcquired):
                    await asyncio.gather(locks.lock("a").acquire(), locks.lock("b", wait=0.3).acquire())
                # The loop refers to what has ended until its next step.
                await asyncio.sleep(0.01)
                gc.collect()
            await (await locks.lock("a", wait=5).acquire()).release()
            await other.release()

        asyncio.run(main())

    def test_tasks_share_a_lock_object(self) -> None:
        async def main() -> None:
            slots = AsyncClient(self.server.url).semaphore("gpu", 2)
            leave = [asyncio.Event(), asyncio.Event()]

            async def work(number: int) -> bool:
                async with slots as held:
                    entered[number].set()
                    await leave[number].wait()
                    return held.is_held

            entered = [asyncio.Event(), asyncio.Event()]
            tasks = [asyncio.ensure_future(work(number)) for number in range(2)]
            for event in entered:
                await event.wait()
            leave[0].set()
            self.assertTrue(await tasks[0])
            free = await asyncio.wait_for(slots.acquire(), 5)
            leave[1].set()
            self.assertTrue(await tasks[1])
            await free.release()

        asyncio.run(main())

    def test_run_ends_after_its_work_also_if_it_is_cancelled(self) -> None:
        async def main() -> None:
            ended: list[bool] = []
            held: AsyncHeld

            async def work() -> None:
                try:
                    await asyncio.sleep(60)
                finally:
                    # Its cleanup needs the lock.
                    await asyncio.sleep(0.3)
                    ended.append(held.is_held)

            async def job() -> None:
                async with AsyncClient(self.server.url).lock("n") as guard:
                    nonlocal held
                    held = guard
                    await guard.run(work())

            task = asyncio.ensure_future(job())
            await asyncio.sleep(0.5)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(ended, [True])

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
