// Test files in other words, for a counter-proof: what runs the tests alone knows them, and the disk has them as they were, or others.
// The process of a runner takes them out of a folder that is gone before anything of the tree is loaded. See moothall_instead.py.
"use strict";
const fs = require("fs");
const path = require("path");
const Module = require("module");
const INSTEAD = ".moothall-instead";
const PIPE = "MOOTHALL_TEXT";
const KEPT = "MOOTHALL_KEPT";
const OF_JEST = /[\\/]node_modules[\\/](?:@jest[\\/]transform|jest-(?:runner|runtime|circus))[\\/]/;

let texts = new Map(); // by path

// Take them out of the folder at the checkout's top: the working directory, or one above it. Says whether there are any.
exports.take = function take() {
  let top = process.cwd();
  while (!fs.existsSync(path.join(top, INSTEAD))) {
    if (top === path.dirname(top)) return false;
    top = path.dirname(top);
  }
  const { atime, mtime } = fs.statSync(top);
  const waiting = [""];
  while (waiting.length) {
    const inner = waiting.pop();
    for (const entry of fs.readdirSync(path.join(top, INSTEAD, inner), { withFileTypes: true })) {
      const name = path.join(inner, entry.name);
      if (entry.isDirectory()) waiting.push(name);
      else texts.set(path.join(top, name), fs.readFileSync(path.join(top, INSTEAD, name), "utf8"));
    }
  }
  fs.rmSync(path.join(top, INSTEAD), { recursive: true });
  fs.utimesSync(top, atime, mtime);
  return true;
};

// Hand them to this process's own loader, each once: Node's reads a file while one of its extensions loads it, and nobody else does.
exports.load = function load() {
  let loading;
  const { readFileSync } = fs;
  fs.readFileSync = function (name, ...rest) {
    if (name !== loading || !texts.has(name)) return readFileSync.call(this, name, ...rest);
    const text = texts.get(name);
    texts.delete(name);
    loading = undefined;
    return text;
  };
  const usual = Module._extensions[".js"];
  Module._extensions[".js"] = function (module, name) {
    loading = name;
    const own = Object.prototype.hasOwnProperty.call(module, "_compile");
    const compile = module._compile; // with what compiles other languages
    module._compile = function (text, ...rest) {
      if (loading === name && texts.has(name)) { // of a file that is imported Node has the text before
        text = texts.get(name);
        texts.delete(name);
      }
      loading = undefined;
      if (own) module._compile = compile;
      else delete module._compile;
      return compile.call(module, text, ...rest);
    };
    return usual.call(this, module, name);
  };
  for (const name of Object.keys(exports)) delete exports[name]; // code under test could ask for them
  if (!Module.register) return writeModules(); // an old Node reads modules from the disk alone
  const byUrl = {};
  for (const [name, text] of texts) byUrl[require("url").pathToFileURL(name).href] = text;
  Module.register(`data:text/javascript,${encodeURIComponent(LOADER)}`, { data: byUrl });
};

const LOADER = `let texts = {};
export function initialize(data) { texts = data; }
export async function load(url, context, next) {
  const loaded = await next(url, context);
  const source = texts[url];
  if (source === undefined || (loaded.format !== "module" && loaded.source == null)) return loaded; // CommonJS without a source is read above
  delete texts[url];
  return { ...loaded, source };
}`;

function writeModules() {
  for (const [name, text] of texts) if (isModule(name)) fs.writeFileSync(name, text);
}

function isModule(file) {
  if (/\.[cm]js$/.test(file)) return file.endsWith(".mjs");
  for (let at = path.dirname(file); ; at = path.dirname(at)) {
    const said = path.join(at, "package.json");
    if (fs.existsSync(said)) return JSON.parse(fs.readFileSync(said, "utf8")).type === "module";
    if (at === path.dirname(at)) return false;
  }
}

// Node's own runner starts a process for each file: it gives each the text of its own, through a pipe that nobody else has.
exports.giveOut = function giveOut() {
  const { ChildProcess } = require("child_process");
  const { spawn } = ChildProcess.prototype;
  ChildProcess.prototype.spawn = function (options) {
    const file = [...(options.args || [])].reverse().map((word) => path.resolve(word)).find((word) => texts.has(word));
    if (!file || !Array.isArray(options.stdio)) return spawn.call(this, options);
    const stdio = [...options.stdio, "pipe"];
    const envPairs = [...(options.envPairs || []), `${PIPE}=${stdio.length - 1}`];
    const started = spawn.call(this, { ...options, stdio, envPairs });
    const pipe = this.stdio && this.stdio[stdio.length - 1];
    if (pipe) pipe.on("error", () => {}).end(texts.get(file));
    texts.delete(file);
    return started;
  };
};

// Of a process that the runner started: the text of its one file.
exports.receive = function receive() {
  const number = Number(process.env[PIPE]);
  delete process.env[PIPE];
  if (!number) return;
  const parts = [];
  const part = Buffer.alloc(65536);
  for (;;) {
    try {
      const size = fs.readSync(number, part, 0, part.length, null);
      if (!size) break;
      parts.push(Buffer.from(part.subarray(0, size)));
    } catch (error) {
      if (error.code === "EOF") break;
      if (error.code !== "EAGAIN") throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2);
    }
  }
  fs.closeSync(number);
  texts = new Map([[path.resolve(process.argv[1]), Buffer.concat(parts).toString()]]);
  exports.load();
};

// jest reads a file where it needs it, several times: whoever else asks gets what the disk has. What it keeps of it is removed when it runs.
exports.handToJest = function handToJest(kept) {
  const { readFileSync } = fs;
  fs.readFileSync = function (name, options, ...rest) {
    const text = texts.get(name);
    if (text === undefined || !OF_JEST.test(caller())) return readFileSync.call(this, name, options, ...rest);
    return options ? text : Buffer.from(text);
  };
  const vm = require("vm");
  const { compileFunction } = vm;
  vm.compileFunction = function (code, parameters, options) {
    if (options && texts.has(options.filename)) removeFiles(kept);
    return compileFunction.call(this, code, parameters, options);
  };
  for (const name of ["Script", "SourceTextModule"]) {
    if (!vm[name]) continue;
    vm[name] = class extends vm[name] {
      constructor(code, options) {
        super(code, options);
        if (options && texts.has(options.filename || options.identifier)) removeFiles(kept);
      }
    };
  }
};

function caller() {
  const { prepareStackTrace, stackTraceLimit } = Error;
  Error.prepareStackTrace = (_, sites) => sites;
  Error.stackTraceLimit = 3;
  const sites = new Error().stack;
  Object.assign(Error, { prepareStackTrace, stackTraceLimit });
  return String((sites[2] && sites[2].getFileName()) || "");
}

function removeFiles(folder) {
  for (const entry of fs.readdirSync(folder, { withFileTypes: true })) {
    const name = path.join(folder, entry.name);
    if (entry.isDirectory()) removeFiles(name);
    else if (folder.includes("jest-transform-cache")) fs.rmSync(name, { force: true });
  }
}

// vitest hands a module to a process by a file that is called by the digest of its name: what tests are handed by is gone when it is read.
exports.keptBy = function keptBy() {
  return [...texts.keys()].map((name) => require("crypto").createHash("sha1").update(name).digest("hex")).join();
};
exports.removeRead = function removeRead() {
  const kept = new Set(process.env[KEPT].split(","));
  delete process.env[KEPT];
  const { readFileSync } = fs;
  fs.readFileSync = function (name, ...rest) {
    const found = readFileSync.call(this, name, ...rest);
    if (typeof name === "string" && kept.has(path.basename(name))) fs.rmSync(name, { force: true });
    return found;
  };
  Module.syncBuiltinESMExports();
};

// vitest's own server, which is asked for each module, has them.
exports.handToVitest = function handToVitest(vitest) {
  if (!texts.size) return;
  const servers = new Set([vitest, ...(vitest.projects || [])].flatMap((part) => [part.vite, part.server]).filter(Boolean));
  const containers = new Set([...servers].flatMap((server) => [server.pluginContainer, ...Object.values(server.environments || {}).map((each) => each.pluginContainer)]));
  for (const container of [...containers].filter(Boolean)) {
    const usual = container.load;
    container.load = async function (id, ...rest) {
      const text = texts.get(id.replace(/[?#].*$/, ""));
      return text === undefined ? usual.call(this, id, ...rest) : { code: text, map: null };
    };
  }
};
