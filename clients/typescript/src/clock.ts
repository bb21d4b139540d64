/** The fraction by which two clocks may differ. */
const DRIFT = 1 / 1000;

/** The number of servers whose clocks are remembered. */
const CLOCKS = 8;

/** A time in the past. */
export interface Moment {
  monotonic: number;
  wall: number;
}

export function now(): Moment {
  return { monotonic: performance.now(), wall: Date.now() };
}

/** Returns the milliseconds since `moment`; by the time of day, if that has gone on while the machine was suspended. */
export function since(moment: Moment): number {
  return Math.max(performance.now() - moment.monotonic, Date.now() - moment.wall);
}

/**
 * The clock of a server, from the header of the reply to a request.
 *
 * The request was sent at `sent`, and the header contains a later time of the server. So a lease until a time by the clock of the server lasts from `sent` for at least the
 * difference, less the drift between the two clocks.
 */
export class ServerClock {
  readonly server: string;
  readonly #us: bigint;

  constructor(
    readonly sent: Moment,
    header: string,
  ) {
    [this.server, this.#us] = parse(header);
  }

  /** Returns the milliseconds from `sent` for which a lease lasts at least. */
  lasts(until: string): number {
    const [server, us] = parse(until);
    if (server !== this.server) throw new Error("a time of another server");
    const lasts = Number(us - this.#us) / 1000;
    return lasts - Math.max(lasts, 0) * DRIFT;
  }
}

/**
 * The clocks of the servers in their last replies, by which messages expire: a server refuses one that arrives after its client has given it up.
 *
 * At the time of its reply, the clock of a server shows at least the time in the header.
 */
export class Clocks {
  readonly #latest = new Map<string, { received: Moment; us: bigint }>();

  /** Records the clock of a server from a reply that has just arrived. */
  observe(header: string | null): void {
    if (header === null) return;
    const [server, us] = parse(header);
    this.#latest.delete(server);
    this.#latest.set(server, { received: now(), us });
    for (const oldest of this.#latest.keys()) if (this.#latest.size > CLOCKS) this.#latest.delete(oldest);
  }

  /** Returns the header of a message that is given up after `limitMs`, for whichever server receives it; `undefined` before the first reply. */
  expires(limitMs: number): string | undefined {
    // Not by the time of day: that may have been set, and then the expiry would be late.
    const passed = (received: Moment) => (performance.now() - received.monotonic) * (1 - DRIFT);
    const times = [...this.#latest].map(([server, { received, us }]) => `${server};${us + BigInt(Math.floor((passed(received) + limitMs) * 1000))}`);
    return times.join(", ") || undefined;
  }
}

function parse(text: string): [string, bigint] {
  const [server, us] = text.split(";");
  if (!server || !us || !/^-?\d+$/.test(us)) throw new Error(`not a time of a server: ${text}`);
  return [server, BigInt(us)];
}
