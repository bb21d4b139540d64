"""Clients of redis-py's Lock, of kazoo's Lock, or of the lock service, in a run of `chaos` or of `comparison`: see ../README.md."""

import logging
import os
import random
import re
import sys
import threading
import time

BUSY = ["orders", "jobs", "cron"]
RARE = ["rare/1", "rare/2", "rare/3", "rare/4"]
LONG = ["leader", "backup"]
CROWDED = "crowded"
MANY = 32
NO_DEADLINE = 2**63 - 1
logging.disable()


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class RedisPy:
    """`redis.lock.Lock` with a timeout. It reports no loss; the timeout is "a maximum life for the lock"."""

    def __init__(self, servers, lease):
        import redis

        host, port = servers[0].split(":")
        self.redis, self.lease = redis.Redis(host, int(port)), lease
        self.redis.ping()

    def acquire(self, name):
        lock = self.redis.lock(name, timeout=self.lease)
        lock.acquire()
        deadline = now() + int(self.lease * 1e9)
        return lock, lambda: deadline, threading.Event()


class Kazoo:
    """`kazoo.recipe.lock.Lock`. A listener of the connection's state reports a loss, as its documentation recommends."""

    def __init__(self, servers, lease):
        import kazoo.client

        self.holds = set()
        self.zookeeper = kazoo.client.KazooClient(",".join(servers), timeout=lease)
        self.zookeeper.add_listener(self.on_state)
        self.zookeeper.start(timeout=60)

    def on_state(self, state):
        if state != "CONNECTED":
            for lost in list(self.holds):
                lost.set()

    def acquire(self, name):
        lock, lost = self.zookeeper.Lock("/locks/" + name), threading.Event()
        lock.acquire()
        self.holds.add(lost)
        if self.zookeeper.state != "CONNECTED":
            lost.set()
        return lock, lambda: NO_DEADLINE, lost

    def released(self, lost):
        self.holds.discard(lost)


class Polylock:
    """The client of the lock service."""

    def __init__(self, servers, lease):
        import polylock_client

        self.locks, self.lease = polylock_client.Client(*(f"http://{server}" for server in servers)), lease

    def acquire(self, name):
        held = self.locks.lock(name, ttl=self.lease).acquire()
        return held, lambda: int(held._deadline * 1e9), held.lost


def acquire(library, name):
    """An acquisition that gives up is started again."""
    while True:
        try:
            return library.acquire(name)
        except Exception:
            time.sleep(0.05)


def release(library, lock, lost):
    try:
        lock.release()
    except Exception:
        pass
    if hasattr(library, "released"):
        library.released(lost)


class Measured:
    """A process of `comparison`: it does what the lines of its input say."""

    def __init__(self, library):
        self.library, self.taken, self.kept = library, {}, []

    def say(self, *words):
        os.write(1, (" ".join(map(str, words)) + "\n").encode())

    def take(self, name):
        taken = self.taken[name] = {"drops": False, "event": None, "guard": threading.Lock()}
        threading.Thread(target=self.hold, args=(name, taken), daemon=True).start()

    def hold(self, name, taken):
        invoked = now()
        lock, _, lost = acquire(self.library, name)
        self.say("held", name, invoked, now())
        with taken["guard"]:
            taken["event"] = lost
            if taken["drops"]:
                lost.set()
        lost.wait()
        begin = now()
        if not taken["drops"]:
            self.say("lost", name, begin)
        release(self.library, lock, lost)
        if taken["drops"]:
            self.say("dropped", name, begin, now())

    def drop(self, name):
        taken = self.taken.pop(name)
        with taken["guard"]:
            taken["drops"] = True
            if taken["event"]:
                taken["event"].set()

    def loop(self, name, clients, ms):
        until, found = now() + int(ms) * 1_000_000, [[] for _ in range(int(clients))]

        def pairs(mine):
            while now() < until:
                invoked = now()
                lock, _, lost = acquire(self.library, name)
                acquired = now()
                release(self.library, lock, lost)
                mine.append((invoked, acquired, now()))

        threads = [threading.Thread(target=pairs, args=(each,), daemon=True) for each in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.say("\n".join(f"pair {client} {a} {b} {c}" for client, each in enumerate(found) for a, b, c in each))

    def sweep(self, count):
        for number in range(int(count)):
            lock, _, lost = acquire(self.library, f"sweep/{number}")
            release(self.library, lock, lost)

    def many(self, count):
        self.kept = [acquire(self.library, f"many/{number}") for number in range(int(count))]

    def run(self):
        print("ready", flush=True)
        for line in sys.stdin:
            command, *arguments = line.split()
            getattr(self, command)(*arguments)
            if command not in ("take", "drop"):
                self.say("done")


class Process:
    def __init__(self, library, name, directory, seed, lease, is_dense):
        self.library, self.name, self.seed, self.lease, self.is_dense = library, name, seed, lease, is_dense
        self.stops, self.active, self.waiting, self.guard = False, 0, set(), threading.Lock()
        self.sections, self.stalls = (open(f"{directory}/{name}.{kind}", "x") for kind in ("sections", "stalls"))
        threading.Thread(target=self.note_stalls, daemon=True).start()

    def note_stalls(self):
        last = now()
        while True:
            time.sleep(0.03)
            woken = now()
            if woken - last > 300_000_000:
                self.write(self.stalls, f"{last} {woken}")
            last = woken

    def write(self, file, line):
        os.write(file.fileno(), (line + "\n").encode())

    def spawn(self, number, work):
        with self.guard:
            self.active += 1
        threading.Thread(target=self.client, args=(number, work), daemon=True).start()

    def client(self, number, work):
        try:
            work(f"{self.name}.{number}", random.Random(self.seed * 10_000 + number))
        finally:
            with self.guard:
                self.active -= 1

    def use(self, client, draw):
        is_holder = client.endswith(".0")
        while not self.stops:
            time.sleep(draw.uniform(0, 0.060 if draw.random() < 0.25 and not self.is_dense else 0.002))
            if is_holder:
                self.hold(client, draw.choice(LONG), draw.uniform(0.05, self.lease / 2))
                continue
            if self.is_dense and draw.random() > 1 / 16:
                self.hold(client, f"many/{draw.randrange(MANY)}", 0)
                continue
            name = draw.choice(RARE if draw.random() < 0.25 else BUSY)
            kind = draw.randrange(400)
            longest = self.lease / 2 if kind == 0 else 0.040 if kind <= 40 else 0.002
            self.hold(client, name, draw.uniform(0, longest))

    def once(self, name):
        return lambda client, draw: self.hold(client, name, draw.uniform(0, 0.002))

    def hold(self, client, name, lasts):
        invoked = now()
        entry = (name, client, invoked)
        self.waiting.add(entry)
        lock, deadline, lost = acquire(self.library, name)
        acquired = now()
        self.waiting.discard(entry)

        def section(state, released, lost):
            fields = f"{name} {client} exclusive {invoked} - {acquired} - {deadline()} {released} {lost} -"
            self.write(self.sections, f"v1 {state} {fields}")

        section("open", "-", "-")
        if lost.wait(lasts):
            section("over", "-", now())
        else:
            section("over", now(), "-")
        release(self.library, lock, lost)


def main():
    peer, scenario, url, name, directory, seed, clients, short, long = sys.argv[1:10]
    servers = re.findall(r"[\d.]+:\d+", url)
    library = None
    while library is None:
        try:
            library = {"redis-py": RedisPy, "kazoo": Kazoo, "polylock-python": Polylock}[peer](servers, int(short) / 1000)
        except Exception:
            time.sleep(0.05)
    if scenario == "measure":
        return Measured(library).run()
    process = Process(library, name, directory, int(seed), int(short) / 1000, sys.argv[11:12] == ["true"])
    print("ready", flush=True)
    for number in range(int(clients)):
        process.spawn(number, process.use)
    if clients == "0":
        for number, lock in enumerate(BUSY + RARE + LONG + [CROWDED]):
            process.spawn(number, process.once(lock))
    number = 1000
    for line in sys.stdin:
        if not line.startswith("crowd "):
            break
        for _ in range(int(line.split()[1])):
            process.spawn(number, process.once(CROWDED))
            number += 1
    process.stops = True
    limit = now() + (5 * int(long)) * 1_000_000
    while process.active > 0 and now() < limit:
        time.sleep(0.005)
    for entry in sorted(process.waiting):
        print("stuck", *entry)
    print("done", flush=True)
    os._exit(0)


main()
