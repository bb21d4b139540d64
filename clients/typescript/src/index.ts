/** Locks through the lock service of polylock, with fencing tokens and a signal of loss. */

import { type Moment, ServerClock, now, since } from "./clock.js";
import { Lost, type Problem, Unavailable, errorOf } from "./errors.js";

export { ServerClock } from "./clock.js";
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
  /** The number of slots of the semaphore of this name, of which one is to be acquired. All requests state the same number. */
  slots?: number;
  owner?: string;
  label?: string;
  /** Ends the wait. */
  signal?: AbortSignal;
}

type Line = { event: string; fencing_token?: number; slot?: number; until?: string; reason?: string; problem?: Problem };

/** The silence after which a server is given up while a request waits. It sends a line every five seconds. */
const SILENCE_MS = 15_000;

/** The settings of a client. */
export interface ClientSettings {
  /** The token of this caller, if the servers require one. */
  token?: string;
  /** The time without a line from a server after which a request that waits is sent to the next one: more than the five seconds between two lines of a server. */
  silenceMs?: number;
}

/** The lock service at one of these URLs. All servers must serve the same store. */
export class Client {
  readonly #urls: readonly string[];
  readonly #headers: Record<string, string>;
  readonly #silenceMs: number;

  constructor(urls: string | readonly string[] = "http://127.0.0.1:7420", { token, silenceMs = SILENCE_MS }: ClientSettings = {}) {
    this.#urls = typeof urls === "string" ? [urls] : urls;
    this.#headers = { "content-type": "application/json", ...(token === undefined ? {} : { authorization: `Bearer ${token}` }) };
    this.#silenceMs = silenceMs;
  }

  /**
   * Waits for the lock `name`.
   *
   * Rejects with `NotAcquired` if another request holds it and the time to wait is over, with `Unavailable` if no server can be reached, with `Refused` for invalid settings,
   * and with the reason of `signal` if that is aborted.
   */
  async acquire(name: string, settings: Settings = {}): Promise<Held> {
    const { ttlMs, waitMs, signal, ...texts } = settings;
    const time = (ms: number | undefined) => (ms === undefined ? undefined : `${Math.max(Math.round(ms), 0)}ms`);
    const begin = now();
    let failure: unknown;
    for (const url of this.#urls) {
      const body = JSON.stringify({ ...texts, ttl: time(ttlMs), wait: time(waitMs === undefined ? undefined : waitMs - since(begin)) });
      const closing = new AbortController();
      const abort = () => closing.abort(signal?.reason);
      signal?.throwIfAborted();
      signal?.addEventListener("abort", abort, { once: true });
      try {
        const request = { method: "POST", headers: this.#headers, body, signal: closing.signal };
        return await acquireOn(new URL(`/v1/locks/${encodeURIComponent(name)}`, url), name, request, closing, this.#silenceMs);
      } catch (error) {
        closing.abort();
        signal?.throwIfAborted();
        // The error of a connection, or a server that has ended or is silent.
        if (!(error instanceof TypeError || error instanceof Gone)) throw error;
        failure = error.cause ?? error;
      } finally {
        signal?.removeEventListener("abort", abort);
      }
    }
    throw new Unavailable(`${this.#urls.join(", ")}: ${failure}`, { cause: failure });
  }
}

/** The server has ended, or is silent. */
class Gone extends Error {}

async function acquireOn(url: URL, name: string, request: RequestInit, closing: AbortController, silenceMs: number): Promise<Held> {
  let timer: NodeJS.Timeout | undefined;
  const restart = () => {
    clearTimeout(timer);
    timer = setTimeout(() => closing.abort(new Gone("the server is silent")), silenceMs);
  };
  restart();
  try {
    return await readGrant(url, name, request, closing, () => timer && restart());
  } finally {
    // From now on, the deadline limits the silence.
    clearTimeout(timer);
    timer = undefined;
  }
}

async function readGrant(url: URL, name: string, request: RequestInit, closing: AbortController, onChunk: () => void): Promise<Held> {
  const sent = now();
  const response = await fetch(url, request);
  if (!response.ok) throw errorOf({ status: response.status, ...((await response.json().catch(() => ({}))) as Problem) });
  const clock = new ServerClock(sent, response.headers.get("polylock-clock") ?? "");
  const lines = linesOf(response, onChunk);
  for (;;) {
    const { value: line, done } = await lines.next();
    if (done) throw new Gone("the server has ended while the request waited");
    if (line.event === "granted") return new Held(name, clock, line, lines, closing);
    if (line.event === "failed") throw errorOf(line.problem ?? {});
  }
}

async function* linesOf(response: Response, onChunk: () => void): AsyncGenerator<Line, void> {
  let rest = "";
  const decoder = new TextDecoder();
  for await (const chunk of response.body ?? []) {
    onChunk();
    const parts = (rest + decoder.decode(chunk as Uint8Array, { stream: true })).split("\n");
    rest = parts.pop() ?? "";
    for (const part of parts) if (part.trim() !== "") yield JSON.parse(part) as Line;
  }
}

/** A lock that is held, until `release()` or its loss. */
export class Held implements AsyncDisposable {
  /** The fencing token, greater than all earlier ones of this lock. */
  readonly fencingToken: number;
  /** The number of the slot of a semaphore, from 0. */
  readonly slot: number | undefined;
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
    this.slot = granted.slot;
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
