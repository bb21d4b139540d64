// Loaded before Azurite, so that what it has acknowledged is still so when it was killed and started again, as with the real
// service. Left to itself it writes its records down every five seconds, and takes every lease that it reads back for an
// expired one: a date comes back as text, which no date is earlier than.
"use strict";

const fs = require("fs");
const http = require("http");

// Azurite's own copy of its database.
const Loki = require(require.resolve("lokijs", { paths: [process.argv[1]] }));
const databases = new Set();

// Called for each database that is to be written at intervals: none in memory.
Loki.prototype.autosaveEnable = function () {
    this.autosave = true;
    databases.add(this);
};

function save(database) {
    database.autosaveClearFlags();
    const path = database.filename;
    fs.writeFileSync(`${path}.new`, database.serialize());
    fs.renameSync(`${path}.new`, path);
}

// Before the first byte of an answer.
const { writeHead } = http.ServerResponse.prototype;
http.ServerResponse.prototype.writeHead = function (...head) {
    for (const database of databases) {
        if (database.autosaveDirty()) save(database);
    }
    return writeHead.apply(this, head);
};

const { loadJSONObject } = Loki.prototype;
Loki.prototype.loadJSONObject = function (stored, ...options) {
    for (const record of stored.collections.flatMap((collection) => collection.data)) {
        for (const part of [record, record.properties ?? {}]) {
            for (const name of ["leaseExpireTime", "leaseBreakTime", "creationTime", "lastModified"]) {
                if (typeof part[name] === "string") part[name] = new Date(part[name]);
            }
        }
    }
    return loadJSONObject.call(this, stored, ...options);
};
