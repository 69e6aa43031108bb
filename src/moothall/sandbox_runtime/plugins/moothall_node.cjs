// Preloaded into every Node process of a check, by NODE_OPTIONS. Configures known test runners to
// also write their cases as lines of JSON:
// {"start": id}, {"case": id, "result": …, "ms": …, "detail": …}.
"use strict";
const path = require("path");
const folder = process.env.MOOTHALL_REPORTS;
const main = (process.argv[1] || "").split(path.sep).join("/");
const args = process.argv.slice(2);
const pluginPath = (name) => path.join(__dirname, name);

const LIMIT_FACTOR = 3; // for the limit of a case: Node also counts time spent waiting for a core

// A pattern for the full names of the cases to run. MOOTHALL_ONLY_LAST has one for their last
// titles.
const only = process.env.MOOTHALL_ONLY;
const filter = (option) => (only ? [option, only] : []);

function addReporter() {
  if (/\/mocha\/(bin|lib\/cli)\/[^/]*$/.test(main) || /\/\.bin\/_?mocha$/.test(main)) {
    if (!args.some((arg) => arg.includes("moothall_"))) {
      process.argv.push("--reporter", pluginPath("moothall_mocha.cjs"), ...filter("--grep"));
    }
  } else if (/\/(jest|jest-cli)\/bin\/jest(\.js)?$/.test(main) || /\/\.bin\/jest$/.test(main)) {
    const reporter = `--reporters=${pluginPath("moothall_jest.cjs")}`;
    process.argv.push("--reporters=default", reporter, ...filter("-t"));
  } else if (/\/vitest\/vitest\.mjs$/.test(main) || /\/\.bin\/vitest$/.test(main)) {
    const reporter = `--reporter=${pluginPath("moothall_vitest.mjs")}`;
    process.argv.push("--reporter=default", reporter, ...filter("-t"));
  } else if (/\/ava\/(entrypoints\/)?cli\.(m?js)$/.test(main) || /\/\.bin\/ava$/.test(main)) {
    if (!args.includes("--tap")) process.argv.push("--tap");
  } else if (/\/borp\/borp\.js$/.test(main) || /\/\.bin\/borp$/.test(main)) {
    // A reporter option replaces the default reporter. Keep reporters named on the command line.
    const hasReporter = args.some((arg) => /^(--reporter|-r)/.test(arg));
    if (!hasReporter) process.argv.push("--reporter=spec");
    process.argv.push(`--reporter=${pluginPath("moothall_node_test.mjs")}:/dev/null`);
  } else if (process.execArgv.includes("--test") && !process.env.NODE_TEST_CONTEXT) {
    if (!process.execArgv.some((arg) => arg.includes("moothall_"))) restartTestRunner();
  }
}

// Node's own test runner reads its options before anything is loaded, so it is started again with a
// reporter.
function restartTestRunner() {
  const seconds = Number(process.env.MOOTHALL_CASE_SECONDS) || 0;
  const hasOption = (name) => process.execArgv.some((arg) => arg.startsWith(name));
  const options = ["--test-reporter=spec", "--test-reporter-destination=stdout"];
  if (hasOption("--test-reporter")) options.length = 0;
  const reporter = `--test-reporter=${pluginPath("moothall_node_test.mjs")}`;
  options.push(reporter, "--test-reporter-destination=/dev/null");
  if (seconds && process.allowedNodeEnvironmentFlags && !hasOption("--test-timeout")) {
    const [major, minor] = process.versions.node.split(".").map(Number);
    const hasTimeout = major > 21 || (major === 21 && minor >= 2) || (major === 20 && minor >= 11);
    if (hasTimeout) options.push(`--test-timeout=${seconds * LIMIT_FACTOR * 1000}`);
  }
  const pattern = process.env.MOOTHALL_ONLY_LAST;
  if (pattern) options.push(`--test-name-pattern=${pattern}`);
  const { spawnSync } = require("child_process");
  const allArgs = [...options, ...process.execArgv, ...process.argv.slice(1)];
  const { status } = spawnSync(process.execPath, allArgs, { stdio: "inherit" });
  process.exit(status === null ? 1 : status);
}

// Package managers put their own node first on the PATH of a script. Put the `node` of this folder
// before it: it keeps our reporter if a script sets NODE_OPTIONS, and runs the next `node`.
function keepNodeFirst() {
  const { ChildProcess } = require("child_process");
  const { spawn } = ChildProcess.prototype;
  const first = `PATH=${pluginPath("bin")}:`;
  const withPath = (pair) => {
    if (!pair.startsWith("PATH=") || pair.startsWith(first)) return pair;
    return first + pair.slice("PATH=".length);
  };
  ChildProcess.prototype.spawn = function (options) {
    if (!options || !options.envPairs) return spawn.call(this, options);
    return spawn.call(this, { ...options, envPairs: options.envPairs.map(withPath) });
  };
}

if (folder) {
  try {
    const isPackageManager = /(?:^|\/)(?:npm|npx|pnpm|pnpx|yarn|yarnpkg|corepack)[^/]*$/.test(main);
    if (process.env.MOOTHALL_NODE && isPackageManager) keepNodeFirst();
    addReporter();
  } catch (error) {
    process.emitWarning(`The reporter could not be added: ${error}`);
  }
}
