// The vectors that all clients share: see clients/README.md. The variable POLYLOCK_VECTORS names the file.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { Client, Lost, NotAcquired, Refused, ServerClock, Unavailable } from "polylock-client";

import { PROGRAM, startServer } from "./server.js";

const ERRORS = { lost: Lost, "not-acquired": NotAcquired, refused: Refused, unavailable: Unavailable };
const vectors = JSON.parse(readFileSync(process.env.POLYLOCK_VECTORS ?? "vectors.json", "utf8"));

for (const { clock, until, lasts_ms, error } of vectors.deadlines) {
  test(`the deadline of ${clock} and ${until}`, () => {
    const lasts = () => new ServerClock({ monotonic: 0, wall: 0 }, clock).lasts(until);
    if (error) assert.throws(lasts);
    else assert.equal(Math.trunc(Number(lasts().toFixed(6))), lasts_ms);
  });
}

for (const { name, steps } of vectors.scenarios) {
  test(name, async () => {
    const scenario = new Scenario(mkdtempSync(join(tmpdir(), "polylock-")));
    await scenario.start("127.0.0.1:0");
    try {
      for (const step of steps) {
        const [[kind, value]] = Object.entries(step);
        await scenario[kind](step, value);
      }
    } finally {
      scenario.end();
    }
  });
}

class Scenario {
  held_ = {};
  slots = {};
  attempts = {};
  lostAt = {};

  constructor(directory) {
    this.directory = directory;
  }

  async start(listen) {
    this.running = await startServer(this.directory, listen);
    this.locks = new Client(this.running.url);
  }

  end() {
    this.running.child.kill("SIGKILL");
    rmSync(this.directory, { recursive: true });
  }

  attempt({ lock, ttl_ms: ttlMs, wait_ms: waitMs, mode, label, slots, also, campaign }, name) {
    this.slots[name] = slots;
    if (campaign) return this.locks.campaign(lock, { ttlMs, label });
    return this.locks.acquire(lock, { ttlMs, waitMs, mode, label, slots, also });
  }

  async once({ job, every_ms: everyMs, ttl_ms: ttlMs, wait_ms: waitMs, retries, attempt, error }, name) {
    const begin = this.locks.once(job, { everyMs, ttlMs, waitMs, retries });
    if (error) return assert.rejects(begin, ERRORS[error]);
    const begun = await begin;
    assert.equal(begun?.number ?? 0, attempt);
    if (begun) this.held_[name] = begun;
  }

  succeed(step, name) {
    return this.record(step, this.held_[name].succeeded());
  }

  fail(step, name) {
    return this.record(step, this.held_[name].failed(step.because));
  }

  record({ error }, recording) {
    return error ? assert.rejects(recording, ERRORS[error]) : recording;
  }

  tokens({ of }, name) {
    assert.deepEqual(Object.keys(this.held_[name].fencingTokens).sort(), of);
  }

  async acquire(step, name) {
    if (step.error) await assert.rejects(this.attempt(step, name), ERRORS[step.error]);
    else this.held_[name] = await this.attempt(step, name);
  }

  begin(step, name) {
    const attempt = { isDone: false };
    attempt.granted = this.attempt(step, name).then((held) => Object.assign(attempt, { held, isDone: true, at: performance.now() }));
    this.attempts[name] = attempt;
  }

  waits(_, name) {
    assert.equal(this.attempts[name].isDone, false);
  }

  async finish({ within_ms }, name) {
    await Promise.race([this.attempts[name].granted, pause(within_ms)]);
    assert.ok(this.attempts[name].isDone, `${name} is not granted`);
    this.held_[name] = this.attempts[name].held;
  }

  held(_, name) {
    this.held_[name].ensureHeld();
    assert.ok(this.held_[name].isHeld && !this.held_[name].lost.aborted);
  }

  ended(_, name) {
    assert.throws(() => this.held_[name].ensureHeld(), Lost);
    assert.equal(this.held_[name].isHeld, false);
  }

  async lost({ within_ms, reason }, name) {
    const { lost } = this.held_[name];
    if (!lost.aborted) await Promise.race([once(lost, "abort"), pause(within_ms)]);
    this.lostAt[name] = performance.now();
    assert.ok(lost.aborted, `${name} is not lost`);
    assert.equal(lost.reason.reason, reason);
    this.ended(null, name);
  }

  release(_, name) {
    return this.held_[name].release();
  }

  token({ above }, name) {
    assert.ok(this.held_[name].fencingToken > this.held_[above].fencingToken);
  }

  other_slot({ than }, name) {
    const slots = [name, than].map((one) => this.held_[one].slot);
    assert.ok(slots[0] !== slots[1] && slots.every((slot) => slot >= 0 && slot < this.slots[name]), String(slots));
  }

  after_loss({ of }, name) {
    assert.ok(this.attempts[name].at > this.lostAt[of]);
  }

  break(_, name) {
    assert.equal(spawnSync(PROGRAM, ["break", "-S", this.running.store, "--yes", name]).status, 0);
  }

  async server(_, action) {
    const { child, url } = this.running;
    if (action === "start") await this.start(new URL(url).host);
    else if (action === "kill") {
      child.kill("SIGKILL");
      await once(child, "exit");
    } else child.kill(action === "stop" ? "SIGSTOP" : "SIGCONT");
  }

  pause_ms(_, ms) {
    return pause(ms);
  }
}
