/** The fraction by which two clocks may differ. */
const DRIFT = 1 / 1000;

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

function parse(text: string): [string, bigint] {
  const [server, us] = text.split(";");
  if (!server || !us || !/^-?\d+$/.test(us)) throw new Error(`not a time of a server: ${text}`);
  return [server, BigInt(us)];
}
