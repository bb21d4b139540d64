/** Locks that are held. */

import { setTimeout as pause } from "node:timers/promises";

import { now, since } from "./clock.js";
import { Lost, Unavailable } from "./errors.js";
import { type Lease, RENEWAL_AGE_MS, type Servers, type Stream, left, time } from "./servers.js";

/** The longest time of one timer: a suspended machine stops it. */
const TICK_MS = 500;

/** The shortest and the longest pause between two attempts of a release. */
const PAUSES_MS = [100, 1000] as const;

/** A lock that is held, until `release()` or its loss. */
export class Held implements AsyncDisposable {
  /** The fencing token, greater than all earlier ones of this lock. */
  readonly fencingToken: number;
  /** The fencing token of each lock by its name, if there are several. */
  readonly fencingTokens: Readonly<Record<string, number>>;
  /** The number of the slot of a semaphore, from 0. */
  readonly slot: number | undefined;
  /** Aborted when the lock is lost, at the deadline at the latest. */
  readonly lost: AbortSignal;
  readonly #losing = new AbortController();
  readonly #closing: AbortController;
  /** @internal */
  protected readonly servers: Servers;
  readonly #ids: Readonly<Record<string, string>>;
  /** The ids that are not released yet, by name. */
  readonly #unreleased: Map<string, string>;
  readonly #hold: { mode?: string; slot?: number };
  readonly #ttlMs: number;
  /** The milliseconds that are left at a renewal. */
  readonly #dueMs: number;
  #isRenewing = false;
  #lease: Lease;
  #isReleased = false;
  #timer: NodeJS.Timeout | undefined;

  /** @internal */
  constructor(
    readonly name: string,
    servers: Servers,
    stream: Stream,
    mode?: string,
  ) {
    const { first } = stream;
    // The server of the stream is notified of a break at once, as long as it has the renewals.
    this.servers = servers.beginningWith(stream.url);
    this.#ids = first.ids ?? { [name]: first.id ?? "" };
    this.#unreleased = new Map(Object.entries(this.#ids));
    this.#hold = { ...(mode !== undefined && { mode }), ...(first.slot !== undefined && { slot: first.slot }) };
    this.#ttlMs = first.ttl_ms ?? 0;
    // Random, so that clients with grants of the same time renew one after the other.
    this.#dueMs = this.#ttlMs * (0.6 + 0.07 * Math.random());
    this.fencingToken = first.fencing_token ?? 0;
    this.fencingTokens = first.fencing_tokens ?? { [name]: this.fencingToken };
    this.slot = first.slot;
    this.lost = this.#losing.signal;
    this.#closing = stream.closing;
    this.#lease = stream.lease;
    this.#watch();
    void this.#read(stream).catch(() => {});
  }

  /** The milliseconds until the deadline, unless the lock is renewed before; 0 once it is lost. */
  get remainingMs(): number {
    return this.#isReleased || this.lost.aborted ? 0 : Math.max(left(this.#lease), 0);
  }

  /** True before the deadline, and before a loss or the release. */
  get isHeld(): boolean {
    return this.remainingMs > 0;
  }

  /** Throws `Lost` if the lock is not held, before a side effect. */
  ensureHeld(): void {
    if (this.isHeld) return;
    this.#lose("deadline");
    throw this.lost.reason instanceof Lost ? this.lost.reason : new Lost(this.name, "released");
  }

  /** Releases the lock. It may be called again. If no server can be reached, the release is repeated in the background until the lease has ended. */
  async release(): Promise<void> {
    if (this.#isReleased) return;
    this.#isReleased = true;
    clearTimeout(this.#timer);
    if (!(await this.#deleteAll())) void this.#releaseLater();
    this.#closing.abort();
  }

  /** Releases the locks that are not released yet. Returns false if one may have to be released again. */
  async #deleteAll(): Promise<boolean> {
    const parameters = Object.entries(this.#hold).map(([key, value]) => [key, String(value)] as [string, string]);
    const releasing = [...this.#unreleased].map(async ([name, id]) => {
      try {
        // The end of a stream is no release: the network may have cut it.
        await this.servers.delete(`/v1/holds/${id}?${new URLSearchParams([["name", name], ...parameters])}`);
      } catch (error) {
        if (error instanceof Unavailable) return;
        process.emitWarning(`lock ${name} is not released, and free when its lease has ended: ${error}`);
      }
      this.#unreleased.delete(name);
    });
    await Promise.all(releasing);
    return this.#unreleased.size === 0;
  }

  async #releaseLater(): Promise<void> {
    const begin = now();
    const limitMs = Math.max(left(this.#lease), 0) + this.#ttlMs;
    const [shortestMs, longestMs] = PAUSES_MS;
    for (let pauseMs: number = shortestMs; since(begin) + pauseMs < limitMs; pauseMs = Math.min(2 * pauseMs, longestMs)) {
      // The process may end meanwhile.
      await pause(pauseMs, undefined, { ref: false });
      if (await this.#deleteAll()) return;
    }
    process.emitWarning(`lock ${this.name} could not be released: its lease has ended`);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  async #read(stream: Stream): Promise<void> {
    for await (const line of stream.lines) {
      if (line.event === "renewed") {
        this.#extend(await stream.leaseUntil(line.until ?? "", RENEWAL_AGE_MS));
        // The server's own deadline says nothing: this client may have renewed the lock elsewhere.
      } else if (line.event === "lost" && line.reason !== "deadline") {
        this.#lose(line.reason ?? "gone");
      }
    }
  }

  /** Renews the lock, on any server. */
  async #renew(): Promise<void> {
    this.#isRenewing = true;
    try {
      const body = { ttl: time(this.#ttlMs), ...this.#hold };
      const renewals = Object.entries(this.#ids).map(([name, id]) => this.servers.renew(`/v1/holds/${id}`, { name, ...body }));
      const leases = await Promise.all(renewals);
      this.#extend(leases.reduce((one, other) => (left(one) < left(other) ? one : other)));
    } catch (error) {
      if (error instanceof Lost) this.#lose(error.reason);
    } finally {
      this.#isRenewing = false;
    }
  }

  #extend(lease: Lease): void {
    // A renewal after the deadline revives nothing.
    if (this.isHeld && left(lease) > left(this.#lease)) this.#lease = lease;
  }

  #lose(reason: string): void {
    if (this.#isReleased || this.lost.aborted) return;
    clearTimeout(this.#timer);
    this.#losing.abort(new Lost(this.name, reason));
    this.#closing.abort();
  }

  #watch(): void {
    const { remainingMs } = this;
    if (remainingMs === 0) return this.#lose("deadline");
    if (remainingMs < this.#dueMs && !this.#isRenewing) void this.#renew();
    this.#timer = setTimeout(() => this.#watch(), Math.min(remainingMs, this.#ttlMs / 10 + 1, TICK_MS));
  }
}

/** An attempt of a job that is due, under its lock. An attempt without an outcome counts as failed. */
export class Attempt extends Held {
  /** The number of the attempt in its period, from 1. */
  readonly number: number;

  /** @internal */
  constructor(name: string, servers: Servers, stream: Stream) {
    super(name, servers, stream);
    this.number = stream.first.attempt ?? 1;
  }

  /** Records the success. Call it before the release. Rejects with `Lost` if the lock is lost: the attempt then counts as failed. */
  succeeded(): Promise<void> {
    return this.#record("succeeded");
  }

  /** Records the failure. Call it before the release. Rejects with `Lost` if the lock is lost. */
  failed(reason: string): Promise<void> {
    return this.#record("failed", reason);
  }

  async #record(outcome: string, reason?: string): Promise<void> {
    this.ensureHeld();
    await this.servers.post(`/v1/jobs/${encodeURIComponent(this.name)}/outcome`, { fencing_token: this.fencingToken, outcome, reason });
  }
}
