// Preloaded into every Node process of a check, by NODE_OPTIONS. A known test runner is configured to write its cases
// also as lines of JSON. Lines: {"start": id}, {"case": id, "result": …, "ms": …, "detail": …}.
"use strict";
const path = require("path");
const folder = process.env.MOOTHALL_REPORTS;
const main = (process.argv[1] || "").split(path.sep).join("/");
const args = process.argv.slice(2);
const ours = (name) => path.join(__dirname, name);

const GENEROUS = 3; // times the limit of a case: Node also counts time spent waiting for a core

// Only these cases are wanted: a pattern of their full names, and one of their last.
const only = process.env.MOOTHALL_ONLY;

function addReporter() {
  if (/\/mocha\/(bin|lib\/cli)\/[^/]*$/.test(main) || /\/\.bin\/_?mocha$/.test(main)) {
    if (!args.some((part) => part.includes("moothall_"))) process.argv.push("--reporter", ours("moothall_mocha.cjs"), ...(only ? ["--grep", only] : []));
  } else if (/\/(jest|jest-cli)\/bin\/jest(\.js)?$/.test(main) || /\/\.bin\/jest$/.test(main)) {
    process.argv.push("--reporters=default", `--reporters=${ours("moothall_jest.cjs")}`, ...(only ? ["-t", only] : []));
  } else if (/\/vitest\/vitest\.mjs$/.test(main) || /\/\.bin\/vitest$/.test(main)) {
    process.argv.push("--reporter=default", `--reporter=${ours("moothall_vitest.mjs")}`, ...(only ? ["-t", only] : []));
  } else if (/\/ava\/(entrypoints\/)?cli\.(m?js)$/.test(main) || /\/\.bin\/ava$/.test(main)) {
    if (!args.includes("--tap")) process.argv.push("--tap");
  } else if (/\/borp\/borp\.js$/.test(main) || /\/\.bin\/borp$/.test(main)) {
    // A reporter option replaces the default reporter; reporters named on the command line are kept.
    const shown = args.some((part) => /^(--reporter|-r)/.test(part)) ? [] : ["--reporter=spec"];
    process.argv.push(...shown, `--reporter=${ours("moothall_node_test.mjs")}:/dev/null`);
  } else if (process.execArgv.includes("--test") && !process.env.NODE_TEST_CONTEXT) {
    if (!process.execArgv.some((part) => part.includes("moothall_"))) testRunner();
  }
}

// Node's own runner reads its options before anything is loaded, so it is started once more with a reporter.
function testRunner() {
  const seconds = Number(process.env.MOOTHALL_CASE_SECONDS) || 0;
  const more = ["--test-reporter=spec", "--test-reporter-destination=stdout"];
  if (process.execArgv.some((part) => part.startsWith("--test-reporter"))) more.length = 0;
  more.push(`--test-reporter=${ours("moothall_node_test.mjs")}`, "--test-reporter-destination=/dev/null");
  if (seconds && process.allowedNodeEnvironmentFlags && !process.execArgv.some((part) => part.startsWith("--test-timeout"))) {
    const [major, minor] = process.versions.node.split(".").map(Number);
    if (major > 21 || (major === 21 && minor >= 2) || (major === 20 && minor >= 11)) more.push(`--test-timeout=${seconds * GENEROUS * 1000}`);
  }
  if (process.env.MOOTHALL_ONLY_LAST) more.push(`--test-name-pattern=${process.env.MOOTHALL_ONLY_LAST}`);
  const { spawnSync } = require("child_process");
  const done = spawnSync(process.execPath, [...more, ...process.execArgv, ...process.argv.slice(1)], { stdio: "inherit" });
  process.exit(done.status === null ? 1 : done.status);
}

// Package managers put their own node first on the PATH of a script. Ours goes before it: it keeps
// our reporter if a script sets NODE_OPTIONS, and runs the next one.
function keepNodeFirst() {
  const { ChildProcess } = require("child_process");
  const { spawn } = ChildProcess.prototype;
  const first = `PATH=${ours("bin")}:`;
  const withOurs = (pair) => (pair.startsWith("PATH=") && !pair.startsWith(first) ? first + pair.slice("PATH=".length) : pair);
  ChildProcess.prototype.spawn = function (options) {
    return spawn.call(this, options && options.envPairs ? { ...options, envPairs: options.envPairs.map(withOurs) } : options);
  };
}

if (folder) {
  try {
    if (process.env.MOOTHALL_NODE && /(?:^|\/)(?:npm|npx|pnpm|pnpx|yarn|yarnpkg|corepack)[^/]*$/.test(main)) keepNodeFirst();
    addReporter();
  } catch (error) {
    process.emitWarning(`the reporter of cases could not be added: ${error}`);
  }
}
