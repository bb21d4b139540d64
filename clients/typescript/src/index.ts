/** Locks through the lock service of polylock, with fencing tokens and a signal of loss. */

import { type Moment, ServerClock, now, since } from "./clock.js";
import { Lost, type Problem, Unavailable, errorOf } from "./errors.js";

export { Lost, NotAcquired, PolylockError, Refused, Unavailable } from "./errors.js";

/** The longest time of one timer: a suspended machine stops it. */
const TICK_MS = 500;

/** The settings of a lock. */
export interface Settings {
  /** `EX` (exclusive, the default), `PR` (shared) or another mode of the store. */
  mode?: string;
  /** The lease: the time until the lock of a dead holder is free. */
  ttlMs?: number;
  /** The longest time to wait; 0 does not wait. */
  waitMs?: number;
  owner?: string;
  label?: string;
  /** Ends the wait. */
  signal?: AbortSignal;
}

type Line = { event: string; fencing_token?: number; until?: string; reason?: string; problem?: Problem };

/** The lock service at one of these URLs. All servers must serve the same store. */
export class Client {
  readonly #urls: readonly string[];

  constructor(...urls: string[]) {
    this.#urls = urls.length > 0 ? urls : ["http://127.0.0.1:7420"];
  }

  /**
   * Waits for the lock `name`.
   *
   * Rejects with `NotAcquired` if another request holds it and the time to wait is over, with `Unavailable` if no server can be reached, with `Refused` for invalid settings,
   * and with the reason of `signal` if that is aborted.
   */
  async acquire(name: string, settings: Settings = {}): Promise<Held> {
    const { ttlMs, waitMs, signal, ...texts } = settings;
    const time = (ms: number | undefined) => (ms === undefined ? undefined : `${Math.round(ms)}ms`);
    const body = JSON.stringify({ ...texts, ttl: time(ttlMs), wait: time(waitMs) });
    let failure: unknown;
    for (const url of this.#urls) {
      const closing = new AbortController();
      const abort = () => closing.abort(signal?.reason);
      signal?.throwIfAborted();
      signal?.addEventListener("abort", abort, { once: true });
      try {
        return await acquireOn(new URL(`/v1/locks/${encodeURIComponent(name)}`, url), name, body, closing);
      } catch (error) {
        closing.abort();
        signal?.throwIfAborted();
        // The error of a connection.
        if (!(error instanceof TypeError)) throw error;
        failure = error.cause ?? error;
      } finally {
        signal?.removeEventListener("abort", abort);
      }
    }
    throw new Unavailable(`${this.#urls.join(", ")}: ${failure}`, { cause: failure });
  }
}

async function acquireOn(url: URL, name: string, body: string, closing: AbortController): Promise<Held> {
  const sent = now();
  const headers = { "content-type": "application/json" };
  const response = await fetch(url, { method: "POST", headers, body, signal: closing.signal });
  if (!response.ok) throw errorOf({ status: response.status, ...((await response.json().catch(() => ({}))) as Problem) });
  const clock = new ServerClock(sent, response.headers.get("polylock-clock") ?? "");
  const lines = linesOf(response);
  for (;;) {
    const { value: line, done } = await lines.next();
    if (done) throw new Unavailable("the server has ended while the request waited");
    if (line.event === "granted") return new Held(name, clock, line, lines, closing);
    if (line.event === "failed") throw errorOf(line.problem ?? {});
  }
}

async function* linesOf(response: Response): AsyncGenerator<Line, void> {
  let rest = "";
  const decoder = new TextDecoder();
  for await (const chunk of response.body ?? []) {
    const parts = (rest + decoder.decode(chunk as Uint8Array, { stream: true })).split("\n");
    rest = parts.pop() ?? "";
    for (const part of parts) if (part.trim() !== "") yield JSON.parse(part) as Line;
  }
}

/** A lock that is held, until `release()` or its loss. */
export class Held implements AsyncDisposable {
  /** The fencing token, greater than all earlier ones of this lock. */
  readonly fencingToken: number;
  /** Aborted when the lock is lost, at the deadline at the latest. */
  readonly lost: AbortSignal;
  readonly #losing = new AbortController();
  readonly #sent: Moment;
  readonly #reading: Promise<void>;
  #lastsMs: number;
  #isReleased = false;
  #timer: NodeJS.Timeout | undefined;

  /** @internal */
  constructor(
    readonly name: string,
    clock: ServerClock,
    granted: Line,
    lines: AsyncGenerator<Line, void>,
    private readonly closing: AbortController,
  ) {
    this.fencingToken = granted.fencing_token ?? 0;
    this.lost = this.#losing.signal;
    this.#sent = clock.sent;
    this.#lastsMs = clock.lasts(granted.until ?? "");
    this.#watch();
    // Without the server, the lock is held until its deadline.
    this.#reading = this.#read(clock, lines).catch(() => {});
  }

  /** The milliseconds until the deadline, unless the lock is renewed before; 0 once it is lost. */
  get remainingMs(): number {
    return this.#isReleased || this.lost.aborted ? 0 : Math.max(this.#lastsMs - since(this.#sent), 0);
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

  /** Releases the lock. It may be called again. */
  async release(): Promise<void> {
    this.#isReleased = true;
    clearTimeout(this.#timer);
    this.closing.abort();
    await this.#reading;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  async #read(clock: ServerClock, lines: AsyncGenerator<Line, void>): Promise<void> {
    for await (const line of lines) {
      if (line.event === "renewed") {
        // A renewal after the deadline revives nothing.
        if (this.isHeld) this.#lastsMs = Math.max(this.#lastsMs, clock.lasts(line.until ?? ""));
      } else if (line.event === "lost") {
        this.#lose(line.reason ?? "gone");
      }
    }
  }

  #lose(reason: string): void {
    if (this.#isReleased || this.lost.aborted) return;
    clearTimeout(this.#timer);
    this.#losing.abort(new Lost(this.name, reason));
  }

  #watch(): void {
    const left = this.remainingMs;
    if (left === 0) return this.#lose("deadline");
    this.#timer = setTimeout(() => this.#watch(), Math.min(left, TICK_MS));
  }
}
