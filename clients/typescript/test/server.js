// A server in front of a SQLite file. The variable POLYLOCK_PROGRAM names the command.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

export const PROGRAM = process.env.POLYLOCK_PROGRAM ?? "polylock";

export async function startServer(directory, listen, ...options) {
  const store = `sqlite://${directory}/locks.db`;
  const child = spawn(PROGRAM, ["serve", "-S", store, "--listen", listen, ...options], { stdio: ["ignore", "pipe", "inherit"] });
  for await (const url of createInterface({ input: child.stdout })) return { url, child, store };
  throw new Error("no server");
}
