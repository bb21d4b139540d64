#!/usr/bin/env node
// Runs the binary of this platform's package, with the same arguments, signals and exit code.
"use strict";

const { spawn } = require("node:child_process");

const name = `@polylock/cli-${process.platform}-${process.arch}`;
let binary;
try {
    binary = require.resolve(`${name}/bin/polylock`);
} catch {
    console.error(`polylock: ${name} is not installed: install without --omit=optional, or this platform has no package`);
    process.exit(126);
}
const words = process.argv.slice(2);

// Newer versions of Node replace this process by the binary, so that nothing stands between it and its caller.
if (process.execve) {
    try {
        process.execve(binary, [binary, ...words]);
    } catch {
        // For example in a worker thread.
    }
}

// The terminal sends these signals to the binary, too; a second one would end its wait at once.
const fromTerminal = [process.stdin, process.stdout, process.stderr].some((stream) => stream.isTTY);
const signals = ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGHUP", "SIGINT", "SIGQUIT"];
const child = spawn(binary, words, { stdio: "inherit" });
for (const signal of signals) {
    const isForwarded = !(fromTerminal && ["SIGHUP", "SIGINT", "SIGQUIT"].includes(signal));
    process.on(signal, () => isForwarded && child.kill(signal));
}
child.on("error", (error) => {
    console.error(`polylock: ${binary} can't be run: ${error.message}`);
    process.exit(126);
});
child.on("exit", (code, signal) => {
    if (signal === null) {
        process.exit(code);
    }
    signals.forEach((handled) => process.removeAllListeners(handled));
    process.kill(process.pid, signal);
});
