// Builds the npm packages of the command: node build.mjs BINARY VERSION OUT [PLATFORM ARCH]
//
// `polylock` has a small script; each `@polylock/cli-PLATFORM-ARCH` has the binary of one platform. npm installs the one of the user's
// platform, because the others are optional dependencies for other platforms. No package runs a script when it is installed.
import { execFileSync } from "node:child_process";
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const PLATFORMS = [["linux", "x64"], ["linux", "arm64"], ["darwin", "arm64"]];

const [binary, version, out, platform = process.platform, arch = process.arch] = process.argv.slice(2);
if (!out) {
    console.error("usage: node build.mjs BINARY VERSION OUT [PLATFORM ARCH]");
    process.exit(64);
}
const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, "../..");
const nameOf = ([os, cpu]) => `@polylock/cli-${os}-${cpu}`;
const common = {
    version,
    license: "MIT OR Apache-2.0",
    repository: { type: "git", url: "git+https://github.com/polylock/polylock.git" },
    homepage: "https://github.com/polylock/polylock",
};
mkdirSync(out, { recursive: true });

// Packs a package with these files, [from, to, mode], and its manifest.
function pack(manifest, files) {
    const directory = mkdtempSync(join(tmpdir(), "polylock-npm-"));
    writeFileSync(join(directory, "package.json"), JSON.stringify(manifest, null, 2) + "\n");
    const licences = ["LICENSE-MIT", "LICENSE-APACHE"].map((name) => [join(root, name), name, 0o644]);
    for (const [from, to, mode] of [...files, ...licences]) {
        mkdirSync(dirname(join(directory, to)), { recursive: true });
        copyFileSync(from, join(directory, to));
        chmodSync(join(directory, to), mode);
    }
    const packed = execFileSync("npm", ["pack", "--silent", "--ignore-scripts", "--pack-destination", resolve(out)], { cwd: directory });
    rmSync(directory, { recursive: true });
    console.log(join(out, packed.toString().trim()));
}

pack(
    {
        name: "polylock",
        description: "Run a command under a distributed lock, and stop it before another process can acquire the lock",
        ...common,
        keywords: ["lock", "distributed", "lease", "cron", "fencing"],
        bin: { polylock: "bin/polylock.js" },
        engines: { node: ">=18" },
        optionalDependencies: Object.fromEntries(PLATFORMS.map((each) => [nameOf(each), version])),
    },
    [
        [join(here, "polylock.js"), "bin/polylock.js", 0o755],
        [join(root, "crates/polylock-cli/README.md"), "README.md", 0o644],
    ],
);
pack(
    {
        name: nameOf([platform, arch]),
        description: `The binary of polylock for ${platform} on ${arch}`,
        ...common,
        os: [platform],
        cpu: [arch],
        preferUnplugged: true,
        // Built against glibc.
        ...(platform === "linux" && { libc: ["glibc"] }),
    },
    [[binary, "bin/polylock", 0o755]],
);
