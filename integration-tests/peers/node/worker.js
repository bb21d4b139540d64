// Clients of redlock on ioredis, or of the lock service, in a run of `chaos` or of `comparison`: see ../README.md.
"use strict";

const fs = require("node:fs");
const readline = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");

const BUSY = ["orders", "jobs", "cron"];
const RARE = ["rare/1", "rare/2", "rare/3", "rare/4"];
const LONG = ["leader", "backup"];
const CROWDED = "crowded";
const MANY = 32;
const OFFSET = BigInt(process.env.BOOTTIME_OFFSET);

const [, , peer, scenario, url, name, directory, seed, clients, short, long, , dense] = process.argv;
const lease = Number(short);
const now = () => process.hrtime.bigint() + OFFSET;
const open = (kind) => fs.openSync(`${directory}/${name}.${kind}`, "wx");
const [sections, stalls] = [open("sections"), open("stalls")];
const waiting = new Set();
let stops = false;
let active = 0;
let library;

/** Returns a generator of numbers from 0 to 1 (mulberry32). */
function random(state) {
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const libraries = {
  /** redlock on ioredis. It reports no loss, but the time of day until which the lock is valid. */
  "node-redlock"(servers) {
    const Redis = require("ioredis");
    const Redlock = require("redlock");
    const clients = servers.map((server) => new Redis(`redis://${server}`));
    clients.forEach((client) => client.on("error", () => {}));
    const redlock = new Redlock(clients);
    redlock.on("clientError", () => {});
    return async (lock) => {
      const held = await redlock.lock(lock, lease);
      return { remainingMs: () => held.expiration - Date.now(), release: () => held.unlock() };
    };
  },

  /** The client of the lock service, in a build of it. */
  async "polylock-typescript"(servers) {
    const { Client } = await import(process.env.POLYLOCK_CLIENT);
    const client = new Client(servers.map((server) => `http://${server}`));
    return async (lock) => {
      const held = await client.acquire(lock, { ttlMs: lease });
      return { remainingMs: () => held.remainingMs, lost: held.lost, release: () => held.release() };
    };
  },
};

/** Acquires the lock. An acquisition that gives up is started again. */
async function acquire(lock) {
  let held;
  while (!held) held = await library(lock).catch(() => sleep(50));
  return held;
}

async function hold(client, lock, lasts) {
  const invoked = now();
  const entry = `${lock} ${client} ${invoked}`;
  waiting.add(entry);
  const held = await acquire(lock);
  const acquired = now();
  waiting.delete(entry);
  let deadline = acquired;
  let lostAt;
  const look = () => {
    const at = now();
    const left = held.remainingMs();
    if (left > 0 || deadline === acquired) deadline = at + BigInt(Math.floor(left * 1e6));
  };
  look();
  held.lost?.addEventListener("abort", () => (lostAt = now()));
  const section = (state, released) =>
    fs.writeSync(sections, `v1 ${state} ${lock} ${client} exclusive ${invoked} - ${acquired} - ${deadline} ${released} ${lostAt ?? "-"} -\n`);
  section("open", "-");
  const end = acquired + BigInt(Math.floor(lasts * 1e6));
  // A renewal moves the deadline.
  for (let left = lasts; left > 0 && lostAt === undefined; left = Number(end - now()) / 1e6) {
    await sleep(Math.min(left, 20));
    look();
  }
  section("over", lostAt === undefined ? now() : "-");
  await held.release().catch(() => {});
}

/** A process of `comparison`: it does what the lines of its input say. */
const measured = {
  taken: new Map(),

  async take(lock) {
    const dropped = new Promise((drop) => this.taken.set(lock, drop));
    const invoked = now();
    const held = await acquire(lock);
    console.log(`held ${lock} ${invoked} ${now()}`);
    await dropped;
    const begin = now();
    await held.release().catch(() => {});
    console.log(`dropped ${lock} ${begin} ${now()}`);
  },

  drop(lock) {
    this.taken.get(lock)();
  },

  async loop(lock, clients, ms) {
    const until = now() + BigInt(ms) * 1_000_000n;
    const pairs = async (_, client) => {
      const found = [];
      while (now() < until) {
        const invoked = now();
        const held = await acquire(lock);
        const acquired = now();
        await held.release().catch(() => {});
        found.push(`pair ${client} ${invoked} ${acquired} ${now()}`);
      }
      return found;
    };
    const found = await Promise.all(Array.from({ length: Number(clients) }, pairs));
    console.log(found.flat().join("\n"));
  },

  async sweep(count) {
    for (let number = 0; number < Number(count); number++) await (await acquire(`sweep/${number}`)).release().catch(() => {});
  },

  async many(count) {
    for (let number = 0; number < Number(count); number++) await acquire(`many/${number}`);
  },

  async run() {
    for await (const line of readline.createInterface({ input: process.stdin })) {
      const [command, ...words] = line.split(" ");
      const done = this[command](...words);
      if (command !== "take" && command !== "drop") {
        await done;
        console.log("done");
      }
    }
  },
};

async function use(client, draw) {
  const choose = (names) => names[Math.floor(draw() * names.length)];
  while (!stops) {
    await sleep(draw() * (draw() < 0.25 && dense !== "true" ? 60 : 2));
    if (client.endsWith(".0")) {
      await hold(client, choose(LONG), 50 + draw() * (lease / 2 - 50));
      continue;
    }
    if (dense === "true" && draw() > 1 / 16) {
      await hold(client, `many/${Math.floor(draw() * MANY)}`, 0);
      continue;
    }
    const lock = choose(draw() < 0.25 ? RARE : BUSY);
    const kind = Math.floor(draw() * 400);
    await hold(client, lock, draw() * (kind === 0 ? lease / 2 : kind <= 40 ? 40 : 2));
  }
}

function spawn(number, work) {
  active += 1;
  work(`${name}.${number}`, random(Number(BigInt(seed) % 1000003n) * 10000 + number)).finally(() => (active -= 1));
}

const once = (lock) => (client, draw) => hold(client, lock, draw() * 2);

async function main() {
  let last = now();
  setInterval(() => {
    const woken = now();
    if (woken - last > 300_000_000n) fs.writeSync(stalls, `${last} ${woken}\n`);
    last = woken;
  }, 30);
  library = await libraries[peer](url.match(/[\d.]+:\d+/g));
  console.log("ready");
  if (scenario === "measure") {
    await measured.run();
    process.exit(0);
  }
  for (let number = 0; number < Number(clients); number++) spawn(number, use);
  if (clients === "0") [...BUSY, ...RARE, ...LONG, CROWDED].forEach((lock, number) => spawn(number, once(lock)));
  let number = 1000;
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (!line.startsWith("crowd ")) break;
    for (let left = Number(line.split(" ")[1]); left > 0; left--) spawn(number++, once(CROWDED));
  }
  stops = true;
  const limit = now() + BigInt(5 * Number(long)) * 1_000_000n;
  while (active > 0 && now() < limit) await sleep(5);
  for (const entry of waiting) console.log(`stuck ${entry}`);
  console.log("done");
  process.exit(0);
}

main();
