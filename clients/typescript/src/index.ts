/** Locks through the lock service of polylock, with fencing tokens and a signal of loss. */

import { setTimeout as pause } from "node:timers/promises";

import { now, since } from "./clock.js";
import { Refused, Unavailable } from "./errors.js";
import { Attempt, Held } from "./held.js";
import { type Body, type ClientSettings, Servers, type Stream, time } from "./servers.js";

export { ServerClock } from "./clock.js";
export { Lost, NotAcquired, PolylockError, Refused, Unavailable } from "./errors.js";
export { Attempt, Held } from "./held.js";
export type { ClientSettings } from "./servers.js";

/** The longest pause of a candidate while no server can be reached. */
const LONGEST_PAUSE_MS = 2000;

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
  /** Further locks: all of them are acquired, or none. */
  also?: readonly string[];
  owner?: string;
  label?: string;
  /** Ends the wait. */
  signal?: AbortSignal;
}

/** The settings of a candidate. */
export type CandidateSettings = Pick<Settings, "ttlMs" | "owner" | "label" | "signal">;

/** The settings of a job. */
export interface JobSettings extends Pick<Settings, "ttlMs" | "waitMs" | "owner" | "label" | "signal"> {
  /** The period: the job runs once in each, over all machines. */
  everyMs: number;
  /** The begin of a period, as the time after midnight in UTC. */
  atMs?: number;
  /** The number of further attempts in a period after one that has failed, or whose process has died. */
  retries?: number;
}

/** Returns a name as a part of a path. */
function segment(name: string): string {
  // `fetch` takes these for steps in the path.
  if (name === "." || name === "..") throw new Refused(`the name ${name} can't be sent by this client`);
  return encodeURIComponent(name);
}

/** The lock service at one of these URLs. All servers must serve the same store. */
export class Client {
  readonly #servers: Servers;

  constructor(urls: string | readonly string[] = "http://127.0.0.1:7420", settings: ClientSettings = {}) {
    this.#servers = new Servers(urls, settings);
  }

  /**
   * Waits for the lock `name`.
   *
   * Rejects with `NotAcquired` if another request holds it and the time to wait is over, with `Unavailable` if no server can be reached, with `Refused` for invalid settings,
   * and with the reason of `signal` if that is aborted.
   */
  async acquire(name: string, { ttlMs, waitMs, signal, ...settings }: Settings = {}): Promise<Held> {
    const path = `/v1/locks/${segment(name)}`;
    return this.#acquire(path, { ...settings, ttl: time(ttlMs) }, waitMs, signal, (stream) => new Held(name, this.#servers, stream, settings.mode));
  }

  /**
   * Waits until this candidate leads in the election `name`, without a limit, also while no server can be reached. Its term ends with the hold; end its work before another
   * one leads.
   */
  async campaign(name: string, settings: CandidateSettings = {}): Promise<Held> {
    for (let pauseMs = 100; ; pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS)) {
      try {
        return await this.acquire(name, settings);
      } catch (error) {
        if (!(error instanceof Unavailable)) throw error;
      }
      await pause(pauseMs, undefined, { signal: settings.signal });
    }
  }

  /** Begins an attempt of the job `name`; resolves to `undefined` if it is not due. It waits while another process runs the job. Rejects as `acquire` does. */
  async once(name: string, { everyMs, atMs, ttlMs, waitMs, signal, ...settings }: JobSettings): Promise<Attempt | undefined> {
    const body = { ...settings, every: time(everyMs), at: time(atMs), ttl: time(ttlMs) };
    const attemptOf = (stream: Stream) => (stream.first.event === "skipped" ? undefined : new Attempt(name, this.#servers, stream));
    return this.#acquire(`/v1/jobs/${segment(name)}`, body, waitMs, signal, attemptOf);
  }

  /** Waits for a lock, and resolves to the hold of its stream; to `undefined` if it has none. */
  async #acquire<H extends Held | undefined>(path: string, body: Body, waitMs: number | undefined, signal: AbortSignal | undefined, heldBy: (stream: Stream) => H): Promise<H> {
    const begin = now();
    for (;;) {
      const stream = await this.#servers.open(path, body, waitMs === undefined ? undefined : waitMs - since(begin), signal);
      const held = heldBy(stream);
      if (held === undefined) {
        stream.closing.abort();
        return held;
      }
      if (held.isHeld && !signal?.aborted) return held;
      // Its lease had ended when the grant arrived, or nobody waits any more.
      await held.release();
      signal?.throwIfAborted();
    }
  }
}
