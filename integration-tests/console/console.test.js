// The console against a real server, in headless Chromium. The variable POLYLOCK_PROGRAM names the command, and SCREENSHOTS a directory for pictures.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, afterEach, before, beforeEach, test } from "node:test";

import { chromium } from "playwright-core";

const PROGRAM = process.env.POLYLOCK_PROGRAM ?? "polylock";
const PICTURES = process.env.SCREENSHOTS;
const MARKUP = '<img src=x onerror="document.title=1">';

let browser, directory, children, server;

before(async () => {
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-quic"] });
});

after(() => browser.close());

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), "polylock-"));
  children = [];
  const callers = [
    ["operator", '["exclusive", "break"]'],
    ["viewer", '["inspect"]'],
  ].map(([name, rights]) => `[[caller]]\nname = "${name}"\ntoken_sha256 = "${createHash("sha256").update(name).digest("hex")}"\nallow = [{ prefix = "", rights = ${rights} }]\n`);
  writeFileSync(join(directory, "access.toml"), callers.join("\n"));
  server = await serve("127.0.0.1:0", "--access", join(directory, "access.toml"));
});

afterEach(() => {
  for (const child of children) child.kill("SIGKILL");
  rmSync(directory, { recursive: true });
});

const store = () => `sqlite://${directory}/locks.db`;

function start(subcommand, ...words) {
  const child = spawn(PROGRAM, [subcommand, "-S", store(), ...words], { stdio: ["ignore", "pipe", "ignore"] });
  children.push(child);
  return child;
}

async function serve(address, ...options) {
  const child = start("serve", "--listen", address, ...options);
  for await (const url of createInterface({ input: child.stdout })) return { url, child };
}

/** Opens the console, signed in with a token. It fails if the page requests anything from elsewhere, or reports an error. */
async function open(token, settings = {}) {
  const context = await browser.newContext(settings);
  const page = await context.newPage();
  const faults = [];
  page.on("request", (request) => request.url().startsWith(server.url) || faults.push(`foreign request: ${request.url()}`));
  page.on("pageerror", (error) => faults.push(String(error)));
  await page.goto(server.url);
  if (token) {
    await page.getByLabel("Token of a caller").fill(token);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByText("Live").waitFor();
  }
  return { page, check: async () => (await context.close(), assert.deepEqual(faults, [])) };
}

async function picture(page, name) {
  if (!PICTURES) return;
  mkdirSync(PICTURES, { recursive: true });
  await page.screenshot({ path: join(PICTURES, `${name}.png`), fullPage: true });
}

const row = (page, name) => page.getByRole("row").filter({ has: page.getByRole("cell", { name, exact: true }) });

test("an unknown token is refused, and a caller without the right breaks nothing", async () => {
  start("run", "orders/42", "sleep", "60");
  const { page, check } = await open();
  await page.getByLabel("Token of a caller").fill("unknown");
  await page.keyboard.press("Enter");
  await page.getByText("This token is unknown.").waitFor();
  await picture(page, "sign-in");
  await page.getByLabel("Token of a caller").fill("viewer");
  await page.keyboard.press("Enter");
  await row(page, "orders/42").waitFor();
  assert.equal(await page.getByRole("button", { name: /Break/ }).count(), 0);
  await check();
});

test("the table shows holders, leases and queues, and the search filters it", async () => {
  start("run", "--label", MARKUP, "orders/42", "sleep", "60");
  start("run", "nightly", "sleep", "60");
  const { page, check } = await open("operator");
  const orders = row(page, "orders/42");
  await orders.waitFor();
  await row(page, "nightly").waitFor();
  // A text of another user is no markup.
  await page.getByText(MARKUP).waitFor();
  assert.equal(await page.title(), "polylock");
  start("run", "orders/42", "true");
  await orders.getByText("1 waiting").waitFor();
  await orders.getByText("1 waiting").click();
  await orders.getByText(/^1\. /).waitFor();
  // A refresh keeps the queue open.
  await page.waitForTimeout(2500);
  assert.ok(await orders.getByText(/^1\. /).isVisible());
  assert.match(await orders.innerText(), /token \d+/);
  assert.match(await orders.innerText(), /\d+ s/);
  await page.getByLabel("Search").fill("night");
  await orders.waitFor({ state: "detached" });
  assert.ok(await row(page, "nightly").isVisible());
  await page.getByText("1 of 2 locks").waitFor();
  await page.getByLabel("Search").fill("nothing like this");
  await page.getByText("No lock matches the search.").waitFor();
  await page.getByLabel("Search").fill("");
  await orders.waitFor();
  await picture(page, "table");
  await check();
});

test("a lock is broken with the keyboard alone, and its holder gets the reason", async () => {
  const run = start("run", "--grace", "1s", "orders/42", "sleep", "60");
  const { page, check } = await open("operator");
  await row(page, "orders/42").waitFor();
  await page.getByRole("button", { name: "Break orders/42" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await picture(page, "break");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  await page.keyboard.press("Enter");
  await page.getByLabel("Reason, for the holder").fill("deploy");
  const ended = new Promise((resolve) => run.on("exit", resolve));
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  assert.notEqual(await ended, 0);
  await row(page, "orders/42").waitFor({ state: "detached" });
  await page.getByRole("log").getByText("broken").first().waitFor();
  await picture(page, "events");
  await check();
});

test("an outage of the server is shown, and ends", async () => {
  start("run", "orders/42", "sleep", "60");
  const { page, check } = await open("operator");
  await row(page, "orders/42").waitFor();
  server.child.kill("SIGKILL");
  await page.getByText("The server can't be reached.").waitFor();
  await picture(page, "outage");
  server = await serve(new URL(server.url).host, "--access", join(directory, "access.toml"));
  await page.getByText("Live").waitFor();
  await check();
});

test("the console fits on a phone, and in the dark", async () => {
  start("run", "--label", "the nightly report of all customers", "reports/a-rather-long-name-of-a-lock/2026-11-26", "sleep", "60");
  start("run", "orders/42", "sleep", "60");
  const { page, check } = await open("operator", { viewport: { width: 360, height: 740 }, colorScheme: "dark" });
  await row(page, "orders/42").waitFor();
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= 360, `the page is ${width} px wide`);
  await picture(page, "phone-dark");
  await check();
});

test("without an access file, the console needs no token", async () => {
  server = await serve("127.0.0.1:0");
  const { page, check } = await open();
  await page.getByText("No lock is held.").waitFor();
  assert.equal(spawnSync(PROGRAM, ["run", "-S", store(), "n", "true"]).status, 0);
  await check();
});
