/** The base of all errors. */
export class PolylockError extends Error {
  constructor(message?: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** Another request holds the lock, and the time to wait is over. This is no fault. */
export class NotAcquired extends PolylockError {}

/** No server, or not its store, can be reached for the moment. A later attempt may succeed. */
export class Unavailable extends PolylockError {}

/** The server has refused the request: correct the name, the settings or the rights. */
export class Refused extends PolylockError {}

/** The lock was held and is lost: stop the work that it protected. */
export class Lost extends PolylockError {
  constructor(
    lock: string,
    /** The reason, as one word. */
    readonly reason: string,
    message = `lock ${lock} lost: ${reason}`,
  ) {
    super(message);
  }
}

/** Problem details of RFC 9457. */
export interface Problem {
  type?: string;
  title?: string;
  status?: number;
  detail?: string;
  /** The reason for the loss of a lock, as one word. */
  reason?: string;
}

export function errorOf(problem: Problem): PolylockError {
  const word = (problem.type ?? "").split(":").at(-1);
  const text = problem.detail ?? problem.title ?? "the server has failed";
  if (word === "busy") return new NotAcquired(text);
  if (word === "lost") return new Lost("", problem.reason ?? "gone", text);
  if (word === "unavailable" || [429, 502, 503, 504].includes(problem.status ?? 0)) return new Unavailable(text);
  return new Refused(text);
}
