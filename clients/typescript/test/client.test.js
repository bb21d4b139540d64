// The client against a real server. The variable POLYLOCK_PROGRAM names the command.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { hostname, tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterEach, beforeEach, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { Client, Lost, NotAcquired, Refused, Unavailable } from "polylock-client";

import { startServer } from "./server.js";

let directory, servers, server, locks;

async function start(...options) {
  const started = await startServer(directory, "127.0.0.1:0", ...options);
  servers.push(started.child);
  return started;
}

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), "polylock-"));
  servers = [];
  server = await start();
  locks = new Client(server.url);
});

afterEach(() => {
  for (const child of servers) child.kill("SIGKILL");
  rmSync(directory, { recursive: true });
});

test("a blocked event loop delays the signal, and not the check", async () => {
  const held = await locks.acquire("n", { ttlMs: 1000 });
  server.child.kill("SIGSTOP");
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1500);
  assert.equal(held.isHeld, false);
  assert.throws(() => held.ensureHeld(), Lost);
  assert.ok(held.lost.aborted);
  server.child.kill("SIGCONT");
  await held.release();
});

test("the lock of a stopped client is free a lease after its last renewal", async () => {
  const script = `
    import { Client } from "polylock-client";
    const held = await new Client(process.argv[1]).acquire("n", { ttlMs: 2000 });
    await new Promise((resolve) => setTimeout(resolve, 3000));
    held.ensureHeld();
    console.log("held");
    held.lost.addEventListener("abort", () => console.log("lost"));
    setTimeout(() => {}, 60_000);`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", script, server.url], { stdio: ["ignore", "pipe", "inherit"] });
  servers.push(child);
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  assert.equal((await lines.next()).value, "held");
  child.kill("SIGSTOP");
  // Its connection stays open.
  await (await locks.acquire("n", { waitMs: 3000 })).release();
  child.kill("SIGCONT");
  assert.equal((await lines.next()).value, "lost");
});

test("a client continues with the next server", async () => {
  const dead = await start();
  dead.child.kill("SIGKILL");
  await pause(200);
  const held = await new Client([dead.url, server.url]).acquire("n");
  await held.release();
  await assert.rejects(new Client(dead.url).acquire("n"), Unavailable);
});

test("a waiter continues with the next server if its own is stopped", async () => {
  const other = await start();
  const first = await new Client(other.url).acquire("n");
  // More than the time between two lines of a server.
  const waiting = new Client([server.url, other.url], { silenceMs: 6000 }).acquire("n");
  await pause(300);
  server.child.kill("SIGSTOP");
  await pause(7000);
  await first.release();
  const held = await waiting;
  server.child.kill("SIGCONT");
  held.ensureHeld();
  await held.release();
});

test("a release continues with the next server if its own is stopped", async () => {
  const other = await start();
  const held = await new Client([server.url, other.url]).acquire("n");
  server.child.kill("SIGSTOP");
  const releasing = held.release();
  // Less than the lease.
  const next = await new Client(other.url).acquire("n", { waitMs: 10_000 });
  await releasing;
  server.child.kill("SIGCONT");
  await next.release();
});

test("a URL is that of a server with the port of the service", async () => {
  for (const url of ["ftp://h", "127.0.0.1:7420", "h", "http://", "http://h/locks", "http://h?x=1", "http://u:secret@h", "http://h:x"]) {
    assert.throws(() => new Client(url), (error) => error instanceof TypeError && !error.message.includes("secret"), url);
  }
  const port = new URL(server.url).port;
  await (await new Client(`http://127.0.0.1:${port}/`).acquire("n")).release();
  await assert.rejects(locks.acquire(".."), Refused);
});

test("the owner is this process unless it states another", async () => {
  const owner = async () => (await (await fetch(`${server.url}/v1/locks/n`)).json()).holders[0].owner;
  const held = await locks.acquire("n");
  assert.equal(await owner(), `${hostname()}:${process.pid}`);
  await held.release();
  const other = await locks.acquire("n", { owner: "billing" });
  assert.equal(await owner(), "billing");
  await other.release();
});

test("a release is repeated while no server can be reached", async () => {
  const held = await locks.acquire("n");
  server.child.kill("SIGSTOP");
  await held.release();
  server.child.kill("SIGCONT");
  // Long before its lease ends.
  await (await locks.acquire("n", { waitMs: 8000 })).release();
});

test("a stopped server delays one request", async () => {
  const stopped = await start();
  stopped.child.kill("SIGSTOP");
  const locks = new Client([stopped.url, server.url]);
  await (await locks.acquire("n")).release();
  const begin = performance.now();
  for (let number = 0; number < 10; number++) await (await locks.acquire("n")).release();
  // Five seconds for each request to the stopped one.
  assert.ok(performance.now() - begin < 10_000);
});

test("the time to wait holds for all servers together", async () => {
  const first = await locks.acquire("n");
  const stopped = await start();
  stopped.child.kill("SIGSTOP");
  const begin = performance.now();
  await assert.rejects(new Client([stopped.url, server.url], { silenceMs: 1000 }).acquire("n", { waitMs: 1500 }), NotAcquired);
  assert.ok(performance.now() - begin < 2500);
  await assert.rejects(new Client(stopped.url, { silenceMs: 500 }).acquire("n"), Unavailable);
  await first.release();
});

test("a caller has the rights of its token", async () => {
  const access = join(directory, "access.toml");
  const digest = createHash("sha256").update("secret").digest("hex");
  writeFileSync(access, `[[caller]]\nname = "test"\ntoken_sha256 = "${digest}"\nallow = [{ prefix = "a/", rights = ["exclusive"] }]\n`);
  const { url } = await start("--access", access);
  const held = await new Client(url, { token: "secret" }).acquire("a/1");
  await held.release();
  const refused = [[{ token: "secret" }, "b"], [{ token: "x" }, "a/1"], [{}, "a/1"]];
  for (const [settings, name] of refused) await assert.rejects(new Client(url, settings).acquire(name), Refused);
});

test("an aborted wait leaves nothing", async () => {
  const first = await locks.acquire("n");
  const abort = new AbortController();
  const waiting = locks.acquire("n", { signal: abort.signal });
  setTimeout(() => abort.abort(new Error("enough")), 300);
  await assert.rejects(waiting, /enough/);
  await first.release();
  const last = await locks.acquire("n", { waitMs: 10_000 });
  await last.release();
});

test("increments of many tasks are exact", async () => {
  const path = join(directory, "number");
  writeFileSync(path, "0");
  const increment = async () => {
    for (let time = 0; time < 25; time += 1) {
      const held = await locks.acquire("number");
      const number = Number(readFileSync(path));
      await pause(1);
      writeFileSync(path, String(number + 1));
      await held.release();
    }
  };
  await Promise.all(Array.from({ length: 8 }, increment));
  assert.equal(readFileSync(path, "utf8"), "200");
});
