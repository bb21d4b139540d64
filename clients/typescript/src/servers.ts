/** The servers, and the requests to them: one is used until it fails. */

import { hostname } from "node:os";

import { Clocks, type Moment, ServerClock, now, since } from "./clock.js";
import { type Problem, Unavailable, errorOf } from "./errors.js";

/** The settings of a client. */
export interface ClientSettings {
  /** The token of this caller, if the servers require one. */
  token?: string;
  /** The time without a line from a server after which a request that waits is sent to the next one: more than the five seconds between two lines of a server. */
  silenceMs?: number;
}

/** The settings of a request. */
export type Body = { owner?: string | undefined; [setting: string]: unknown };

/** A line of a stream. */
export type Line = {
  event: string;
  fencing_token?: number;
  fencing_tokens?: Record<string, number>;
  id?: string;
  ids?: Record<string, string>;
  ttl_ms?: number;
  slot?: number;
  attempt?: number;
  until?: string;
  reason?: string;
  problem?: Problem;
};

/** A stream after the line that ends the wait. */
export class Stream {
  /** The line that has ended the wait. */
  first: Line = { event: "" };
  /** The lease of a grant. */
  lease: Lease = { sent: { monotonic: 0, wall: 0 }, lastsMs: 0 };

  constructor(
    private clock: ServerClock,
    /** The server. */
    readonly url: string,
    readonly lines: AsyncGenerator<Line, void>,
    readonly closing: AbortController,
    private readonly readClock: () => Promise<ServerClock>,
  ) {}

  /**
   * Returns the time for which a lease lasts at least. The clock of the server is read again after this age: the two clocks drift, and the first request may have been
   * late.
   */
  async leaseUntil(until: string, longestAgeMs: number): Promise<Lease> {
    if (since(this.clock.sent) > longestAgeMs) {
      const clock = await this.readClock().catch(() => this.clock);
      // Behind a proxy, another server may reply.
      if (clock.server === this.clock.server) this.clock = clock;
    }
    return { sent: this.clock.sent, lastsMs: this.clock.lasts(until) };
  }
}

/** A lease, which lasts at least for this time after a moment. */
export interface Lease {
  sent: Moment;
  lastsMs: number;
}

/** Returns the milliseconds until the end of a lease; negative after it. */
export const left = ({ sent, lastsMs }: Lease) => lastsMs - since(sent);

/** The age after which the clock of a server is read again, at a grant and at a renewal, and the time limit for that. */
const GRANT_AGE_MS = 1000;
export const RENEWAL_AGE_MS = 30_000;
const CLOCK_TIMEOUT_MS = 2000;

/** The silence after which a server is given up that is to renew or to release a hold. */
const RENEWAL_TIMEOUT_MS = 1000;

/** The silence after which a server is given up while a request waits. It sends a line every five seconds. */
const SILENCE_MS = 15_000;

/** The silence before the reply to a request that waits, which begins at once. */
const REPLY_TIMEOUT_MS = 5000;

/** The longest time for which a message counts, and the number of attempts of one that a server finds too late, because it does not know its clock. */
const LONGEST_EXPIRY_MS = 5000;
const ATTEMPTS = 3;

/** The port of a URL without one. */
const PORT = "7420";

/** Returns the URL of a server with its port. The message of the error does not contain the URL, which may have a password. */
function serverOf(text: string): string {
  const url = parsed(text);
  const isServer = url && ["http:", "https:"].includes(url.protocol) && /^\/*$/.test(url.pathname);
  if (!isServer || url.search || url.hash || url.username || url.password) {
    throw new TypeError("the URL of a lock service is http://host:port or https://host:port, without a path, a user or a query");
  }
  // A URL does not keep the port that is the default of its scheme.
  return `${url.protocol}//${url.hostname}:${/:(\d+)\/*$/.exec(text)?.[1] ?? PORT}`;
}

function parsed(text: string): URL | undefined {
  try {
    return new URL(text);
  } catch {
    return undefined;
  }
}

/** The owner of the holds that name none: this process. */
const OWNER = `${hostname().slice(0, 200)}:${process.pid}`;

/** The server has ended, or is silent. */
class Gone extends Error {}

/** Returns a time for the body of a request. */
export const time = (ms: number | undefined) => (ms === undefined ? undefined : `${Math.max(Math.round(ms), 0)}ms`);

export class Servers {
  readonly #urls: readonly string[];
  readonly #settings: ClientSettings;
  readonly #headers: Record<string, string>;
  readonly #silenceMs: number;
  #clocks = new Clocks();
  /** The index of the server that has replied last. */
  #used = 0;

  constructor(urls: string | readonly string[], settings: ClientSettings) {
    const { token, silenceMs = SILENCE_MS } = settings;
    this.#urls = (typeof urls === "string" ? [urls] : urls).map(serverOf);
    this.#settings = settings;
    this.#headers = { "content-type": "application/json", ...(token === undefined ? {} : { authorization: `Bearer ${token}` }) };
    this.#silenceMs = silenceMs;
  }

  /** Returns the same servers for a hold: it uses this one, that of its stream, until it fails. */
  beginningWith(url: string): Servers {
    const servers = new Servers(this.#urls, this.#settings);
    servers.#clocks = this.#clocks;
    servers.#used = this.#urls.indexOf(url);
    return servers;
  }

  /** Waits for a lock, for `waitMs` over all servers together. */
  async open(path: string, settings: Body, waitMs?: number, signal?: AbortSignal): Promise<Stream> {
    const begin = now();
    return this.#first(signal, (url, closing) => {
      const body = { ...settings, owner: settings.owner ?? OWNER, wait: time(waitMs === undefined ? undefined : waitMs - since(begin)) };
      return this.#open(url, new URL(path, url), this.#request(body, closing.signal), closing, waitMs !== 0);
    });
  }

  /** Sends a request that may be repeated. */
  async post(path: string, body: object): Promise<void> {
    await this.#repeat("POST", path, body, this.#silenceMs);
  }

  /** Sends a request that may be repeated. */
  async delete(path: string): Promise<void> {
    await this.#repeat("DELETE", path, undefined, RENEWAL_TIMEOUT_MS);
  }

  /** Renews a hold, and returns its lease. Rejects with `Lost` if the hold has ended. */
  async renew(path: string, body: object): Promise<Lease> {
    const { sent, response } = await this.#repeat("PUT", path, body, RENEWAL_TIMEOUT_MS, { "if-match": "*" });
    const clock = new ServerClock(sent, response.headers.get("polylock-clock") ?? "");
    return { sent, lastsMs: clock.lasts(((await response.json()) as Line).until ?? "") };
  }

  #repeat(method: string, path: string, body: object | undefined, silenceMs: number, headers = {}): Promise<{ sent: Moment; response: Response }> {
    return this.#first(undefined, async (url, closing) => {
      const timer = setTimeout(() => closing.abort(new Gone("the server is silent")), silenceMs);
      try {
        const sent = now();
        const request = { method, headers: { ...this.#headers, ...headers }, signal: closing.signal, ...(body && { body: JSON.stringify(body) }) };
        const response = await this.#send(new URL(path, url), request, silenceMs);
        // The whole reply is in time.
        const text = await response.text();
        return { sent, response: new Response(text || null, { status: response.status, headers: response.headers }) };
      } finally {
        clearTimeout(timer);
      }
    });
  }

  #request(body: object, signal: AbortSignal): RequestInit {
    return { method: "POST", headers: this.#headers, body: JSON.stringify(body), signal };
  }

  async #first<T>(signal: AbortSignal | undefined, send: (url: string, closing: AbortController) => Promise<T>): Promise<T> {
    let failure: unknown;
    const first = this.#used;
    for (let number = first; number < first + this.#urls.length; number++) {
      const used = number % this.#urls.length;
      const closing = new AbortController();
      const abort = () => closing.abort(signal?.reason);
      signal?.throwIfAborted();
      signal?.addEventListener("abort", abort, { once: true });
      try {
        const result = await send(this.#urls[used]!, closing);
        this.#used = used;
        return result;
      } catch (error) {
        closing.abort();
        signal?.throwIfAborted();
        // The error of a connection, or a server that has ended, is silent or shuts down.
        if (!(error instanceof TypeError || error instanceof Gone || error instanceof Unavailable)) throw error;
        failure = error.cause ?? error;
      } finally {
        signal?.removeEventListener("abort", abort);
      }
    }
    throw new Unavailable(`${this.#urls.join(", ")}: ${failure}`, { cause: failure });
  }

  async #send(url: URL, request: RequestInit, limitMs: number): Promise<Response> {
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const expires = this.#clocks.expires(Math.min(limitMs, LONGEST_EXPIRY_MS));
      const headers = { ...(request.headers as Record<string, string>), ...(expires && { "polylock-expires": expires }) };
      const response = await fetch(url, { ...request, headers });
      this.#clocks.observe(response.headers.get("polylock-clock"));
      if (response.ok) return response;
      const problem = { status: response.status, ...((await response.json().catch(() => ({}))) as Problem) };
      if (problem.type !== "urn:polylock:late") throw errorOf(problem);
    }
    throw new Gone("the server finds each message too late");
  }

  async #clockOf(url: URL): Promise<ServerClock> {
    const sent = now();
    const response = await this.#send(new URL("/healthz", url), { headers: this.#headers, signal: AbortSignal.timeout(CLOCK_TIMEOUT_MS) }, CLOCK_TIMEOUT_MS);
    await response.arrayBuffer();
    return new ServerClock(sent, response.headers.get("polylock-clock") ?? "");
  }

  async #open(server: string, url: URL, request: RequestInit, closing: AbortController, waits: boolean): Promise<Stream> {
    let timer: NodeJS.Timeout | undefined;
    const restart = (silenceMs = this.#silenceMs) => {
      clearTimeout(timer);
      timer = setTimeout(() => closing.abort(new Gone("the server is silent")), silenceMs);
    };
    restart(waits ? Math.min(this.#silenceMs, REPLY_TIMEOUT_MS) : this.#silenceMs);
    try {
      const sent = now();
      const response = await this.#send(url, request, REPLY_TIMEOUT_MS);
      restart();
      const clock = new ServerClock(sent, response.headers.get("polylock-clock") ?? "");
      const lines = linesOf(response, () => timer && restart());
      const stream = new Stream(clock, server, lines, closing, () => this.#clockOf(url));
      for (;;) {
        const { value: line, done } = await lines.next();
        if (done) throw new Gone("the server has ended while the request waited");
        if (line.event === "failed") throw errorOf(line.problem ?? {});
        if (line.event === "queued") continue;
        if (line.event === "granted") stream.lease = await stream.leaseUntil(line.until ?? "", GRANT_AGE_MS);
        stream.first = line;
        return stream;
      }
    } finally {
      // From now on, the deadline limits the silence.
      clearTimeout(timer);
      timer = undefined;
    }
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
