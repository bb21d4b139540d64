// Loaded before Azurite, for what it does differently from the real service: its ETags are random there. Here they are the time of
// the change in units of 100 ns since the year 1, and each is greater than the one before.
//
// Its clock goes ahead of the machine's by as many milliseconds as the file `ahead` in its directory says.
"use strict";

const fs = require("fs");
const path = require("path");

const Machine = Date;

function ahead() {
    try {
        return Number(fs.readFileSync("ahead", "utf8"));
    } catch {
        return 0;
    }
}

global.Date = new Proxy(Machine, {
    construct(target, given, what) {
        return Reflect.construct(target, given.length ? given : [target.now() + ahead()], what);
    },
    get(target, key) {
        return key === "now" ? () => target.now() + ahead() : Reflect.get(target, key);
    },
});

// Azurite's own.
const utils = require(path.join(path.dirname(process.argv[1]), "../common/utils/utils.js"));
let last = 0n;

utils.newEtag = function () {
    const now = BigInt(Date.now()) * 10000n + 621355968000000000n;
    last = now > last ? now : last + 1n;
    return `"0x${last.toString(16).toUpperCase()}"`;
};
