// Preloaded into every Node process of a check, by NODE_OPTIONS: where it is a test runner that we know, it is told to
// write its cases as lines of JSON too. Lines: {"start": id}, {"case": id, "result": …, "ms": …, "said": …}.
"use strict";
const path = require("path");
const folder = process.env.MOOTHALL_REPORTS;
const main = (process.argv[1] || "").split(path.sep).join("/");
const args = process.argv.slice(2);
const ours = (name) => path.join(__dirname, name);

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
    // One reporter takes the place of the usual one; what was said of reporters before stays.
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
    if (major > 21 || (major === 21 && minor >= 2) || (major === 20 && minor >= 11)) more.push(`--test-timeout=${seconds * 1000}`);
  }
  if (process.env.MOOTHALL_ONLY_LAST) more.push(`--test-name-pattern=${process.env.MOOTHALL_ONLY_LAST}`);
  const { spawnSync } = require("child_process");
  const done = spawnSync(process.execPath, [...more, ...process.execArgv, ...process.argv.slice(1)], { stdio: "inherit" });
  process.exit(done.status === null ? 1 : done.status);
}

// Test files in other words: the runner's process moves them to where it finds no tests, and the one that it starts for a file takes that
// of it. Nobody else knows it then, and the disk has the tests as they were. See moothall_instead.py.
const taken = `${folder}-instead`;

function moveInstead() {
  const fs = require("fs");
  let top = process.cwd();
  while (!fs.existsSync(path.join(top, INSTEAD))) {
    if (top === path.dirname(top)) return;
    top = path.dirname(top);
  }
  const { atime, mtime } = fs.statSync(top);
  fs.cpSync(path.join(top, INSTEAD), path.join(taken, top), { recursive: true });
  fs.rmSync(path.join(top, INSTEAD), { recursive: true });
  fs.utimesSync(top, atime, mtime);
}

function takeInstead() {
  const fs = require("fs");
  if (process.execArgv.includes("--test") && !process.env.NODE_TEST_CONTEXT) return moveInstead();
  const file = path.resolve(process.argv[1] || "");
  if (!process.env.NODE_TEST_CONTEXT || !fs.existsSync(path.join(taken, file))) return;
  const text = fs.readFileSync(path.join(taken, file), "utf8");
  fs.rmSync(taken, { recursive: true });
  const Module = require("module");
  const compile = Module.prototype._compile;
  let left = true;
  Module.prototype._compile = function (content, name, ...rest) {
    if (!left || path.resolve(name) !== file) return compile.call(this, content, name, ...rest);
    left = false;
    Module.prototype._compile = compile;
    return compile.call(this, text, name, ...rest);
  };
  if (/\.cjs$/.test(file)) return;
  if (!Module.register) return isModule(fs, file) ? fs.writeFileSync(file, text) : undefined; // an old Node reads modules from the disk alone
  const url = require("url").pathToFileURL(file).href;
  Module.register(`data:text/javascript,${encodeURIComponent(LOADER)}`, { data: { url, text } });
}

const INSTEAD = ".moothall-instead";
const LOADER = `let wanted;
export function initialize(data) { wanted = data; }
export async function load(url, context, next) {
  const loaded = await next(url, context);
  if (!wanted || url !== wanted.url || loaded.format !== "module") return loaded;
  const source = wanted.text;
  wanted = undefined;
  return { ...loaded, source };
}`;

function isModule(fs, file) {
  if (/\.[cm]js$/.test(file)) return file.endsWith(".mjs");
  for (let at = path.dirname(file); ; at = path.dirname(at)) {
    const said = path.join(at, "package.json");
    if (fs.existsSync(said)) return JSON.parse(fs.readFileSync(said, "utf8")).type === "module";
    if (at === path.dirname(at)) return false;
  }
}

if (folder) {
  try {
    takeInstead();
    addReporter();
  } catch (error) {
    process.emitWarning(`the reporter of cases could not be added: ${error}`);
  }
}
