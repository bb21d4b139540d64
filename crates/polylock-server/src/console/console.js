// The console of the lock service. It uses the API as any other client, and shows texts as texts, never as HTML.
"use strict";

const POLL_MS = 1000, COUNTDOWN_MS = 250, RETRY_MS = 2000, EVENTS = 100, LOW = 1 / 3;
const at = (id) => document.getElementById(id);
const TOKEN = "polylock-token";

let rules = [], locks = [], readAt = 0, chosen = null;

/** Returns a new element with a class and children, which are texts or elements. */
function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** Sends a request with the token. Throws a text to be shown. */
async function send(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers };
  if (token) headers.authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The server can't be reached.");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  const error = new Error(problem.detail || problem.title || `The server replied ${response.status}.`);
  error.status = response.status;
  throw error;
}

/** Returns a lock's name as a text that shows all of its characters, with its slot. */
function title({ name, slot, turnstile }) {
  const isPlain = !/[\p{C}]|^\s|\s$/u.test(name);
  const shown = isPlain ? name : `"${name.replace(/[\p{C}"\\]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`)}"`;
  return slot !== undefined ? `${shown} slot ${slot}` : turnstile ? `${shown} turnstile` : shown;
}

/** Returns what distinguishes a lock from all others. */
const keyOf = ({ name, slot, turnstile }) => JSON.stringify([name, slot, turnstile]);

function show(text, isBad) {
  const state = at("state");
  if (state.textContent !== text) state.textContent = text;
  state.className = isBad ? "bad" : "";
}

function mayBreak(name) {
  return rules.some((rule) => name.startsWith(rule.prefix) && rule.rights.includes("break"));
}

const seconds = (ms) => (ms >= 90_000 ? `${Math.round(ms / 60_000)} min` : ms >= 10_000 ? `${Math.round(ms / 1000)} s` : `${(ms / 1000).toFixed(1)} s`);

function lease(entry) {
  const meter = make("meter");
  const text = make("span");
  const item = make("li", "lease", meter, text);
  item.update = (elapsed) => {
    const left = Math.max(entry.expires_in_ms - elapsed, 0);
    // The whole lease is not stored: the longest one that was seen is the measure.
    const whole = longest.get(entry.key) || entry.expires_in_ms || 1;
    meter.max = whole;
    meter.value = left;
    meter.setAttribute("aria-label", "lease left");
    text.textContent = seconds(left);
    text.className = left < whole * LOW ? "low" : "";
  };
  return item;
}

/** The longest lease of each hold that was seen. */
const longest = new Map();

function holder(entry) {
  return make(
    "li", entry.broken ? "broken" : "",
    entry.owner, " ", make("span", "mode", entry.mode),
    entry.label ? ` ${entry.label}` : "",
    entry.fencing_token === undefined ? "" : make("span", "token", ` token ${entry.fencing_token}`),
    entry.broken ? ` (to stop: ${entry.broken})` : "",
  );
}

/** The rows by the key of the lock. A row that has not changed keeps its elements, and so the focus. */
const rows = new Map();

function row(lock) {
  const text = JSON.stringify([
    lock.holders.map(({ age_ms, expires_in_ms, ...rest }) => rest),
    lock.waiters.map(({ age_ms, expires_in_ms, ...rest }) => rest),
    mayBreak(lock.name),
  ]);
  const known = rows.get(lock.key);
  if (known && known.text === text) {
    known.leases.forEach((item, index) => item.renew(lock.holders[index]));
    return known;
  }
  const leases = lock.holders.map((entry) => {
    const own = { ...entry };
    const item = lease(own);
    item.renew = (next) => {
      own.key = `${lock.key} ${next.fencing_token}`;
      own.expires_in_ms = next.expires_in_ms;
      longest.set(own.key, Math.max(longest.get(own.key) || 0, next.expires_in_ms));
    };
    item.renew(entry);
    return item;
  });
  let waiting = "";
  if (lock.waiters.length > 0) {
    const queue = make("ol", "", ...lock.waiters.map((entry, index) => make("li", "", `${index + 1}. ${entry.owner} `, make("span", "mode", entry.mode), ` for ${seconds(entry.age_ms)}`)));
    waiting = make("details", "", make("summary", "", `${lock.waiters.length} waiting`), queue);
    waiting.open = known ? known.isOpen() : false;
  }
  const actions = make("td", "actions");
  if (lock.holders.length > 0 && mayBreak(lock.name)) {
    const button = make("button", "", "Break");
    button.setAttribute("aria-label", `Break ${lock.title}`);
    button.addEventListener("click", () => open(lock));
    actions.append(button);
  }
  const element = make(
    "tr", "",
    make("td", "name", lock.title),
    make("td", "holders", make("ul", "", ...lock.holders.map(holder))),
    make("td", "", make("ul", "", ...leases)),
    make("td", "waiting", waiting),
    actions,
  );
  return { text, element, leases, isOpen: () => Boolean(waiting && waiting.open) };
}

function matches(lock, word) {
  const texts = [lock.title, ...[...lock.holders, ...lock.waiters].flatMap((entry) => [entry.owner, entry.label])];
  return texts.some((text) => text && text.toLowerCase().includes(word));
}

function draw() {
  const word = at("search").value.trim().toLowerCase();
  const shown = locks.filter((lock) => matches(lock, word));
  const body = at("rows");
  const fresh = new Map(shown.map((lock) => [lock.key, row(lock)]));
  for (const [key, { element }] of rows) if (fresh.get(key)?.element !== element) element.remove();
  rows.clear();
  let before = null;
  for (const [key, one] of fresh) {
    rows.set(key, one);
    const next = before ? before.nextSibling : body.firstChild;
    if (next !== one.element) body.insertBefore(one.element, next);
    before = one.element;
  }
  const none = at("none");
  none.hidden = shown.length > 0;
  none.textContent = locks.length === 0 ? "No lock is held." : "No lock matches the search.";
  const count = `${shown.length} of ${locks.length} locks`;
  if (at("count").textContent !== count) at("count").textContent = count;
  countDown();
}

function countDown() {
  const elapsed = performance.now() - readAt;
  for (const { leases } of rows.values()) for (const item of leases) item.update(elapsed);
}

async function poll() {
  if (!document.hidden) {
    try {
      const sent = performance.now();
      locks = await (await send("/v1/locks")).json();
      for (const lock of locks) [lock.title, lock.key] = [title(lock), keyOf(lock)];
      // The times count from the sending of the request, so that no lease looks longer than it is.
      readAt = sent;
      locks.sort((one, other) => (one.title < other.title ? -1 : 1));
      draw();
      show("Live", false);
    } catch (error) {
      if (error.status === 401) return signIn("");
      show(error.message, true);
    }
  }
  setTimeout(poll, POLL_MS);
}

const BAD = new Set(["expired", "broken", "unavailable"]);

function note(event) {
  const list = at("events");
  const time = make("time", "", new Date().toLocaleTimeString());
  const entry = event.entry || {};
  const text = [event.name !== undefined && title(event), entry.owner && `by ${entry.owner}`, entry.broken && `(${entry.broken})`, event.reason].filter(Boolean).join(" ");
  list.prepend(make("li", "", time, make("span", BAD.has(event.event) ? "bad" : "", event.event), make("span", "", text)));
  while (list.children.length > EVENTS) list.lastChild.remove();
}

let isReading = false;

/** Reads the events as lines: an event source has no header for the token. */
async function events() {
  if (isReading) return;
  isReading = true;
  try {
    const reader = (await send("/v1/events")).body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const event = line.trim() && JSON.parse(line);
        // The state at the begin is in the table.
        if (event && event.event !== "held" && event.event !== "waiting") note(event);
      }
    }
  } catch (error) {
    if (error.status === 401) return;
  } finally {
    isReading = false;
  }
  setTimeout(events, RETRY_MS);
}

function open(lock) {
  // The holds that are shown now: nobody who comes after them is broken.
  chosen = { name: lock.name, slot: lock.slot, tokens: lock.holders.map((entry) => entry.fencing_token).filter((token) => token !== undefined) };
  at("break-name").textContent = lock.title;
  at("break-problem").textContent = "";
  at("reason").value = "";
  at("force").checked = false;
  at("break").showModal();
  at("reason").focus();
}

async function breakLock(event) {
  event.preventDefault();
  const body = JSON.stringify({ reason: at("reason").value, force: at("force").checked, slot: chosen.slot, fencing_tokens: chosen.tokens });
  try {
    const broken = await (await send(`/v1/locks/${encodeURIComponent(chosen.name)}/break`, { method: "POST", body, headers: { "content-type": "application/json" } })).json();
    if (broken.length === 0) throw new Error("nothing is broken, because the hold that was shown has ended");
    at("break").close();
  } catch (error) {
    at("break-problem").textContent = error.message;
  }
}

function signIn(problem) {
  show("Sign in", false);
  at("locks").hidden = true;
  at("login").hidden = false;
  at("login-problem").textContent = problem;
  at("token").focus();
}

async function start() {
  try {
    const caller = await (await send("/v1/caller")).json();
    rules = caller.rules;
    at("store").textContent = `on ${caller.store}`;
  } catch (error) {
    if (error.status === 401) return signIn(sessionStorage.getItem(TOKEN) ? "This token is unknown." : "");
    show(error.message, true);
    return void setTimeout(start, RETRY_MS);
  }
  at("login").hidden = true;
  at("locks").hidden = false;
  poll();
  events();
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, at("token").value.trim());
  at("token").value = "";
  start();
});
at("search").addEventListener("input", draw);
at("break").querySelector("form").addEventListener("submit", breakLock);
at("cancel").addEventListener("click", () => at("break").close());
setInterval(countDown, COUNTDOWN_MS);
start();
