// A reporter of mocha: what `spec` shows, and a line a case.
"use strict";
const path = require("path");
const lines = require("./moothall_lines.cjs");
const base = Object.keys(require.cache).find((name) => /[\\/]mocha[\\/]lib[\\/]reporters[\\/]base\.js$/.test(name));
const spec = require(base.replace(/base\.js$/, "spec.js"));
const Spec = spec.Spec || spec; // from mocha 12 on it is one of several exports

module.exports = class extends Spec {
  constructor(runner, options) {
    super(runner, options);
    const cases = lines.open("mocha");
    const counted = lines.counted();
    const ids = new WeakMap();
    const id = (test) => {
      if (!ids.has(test)) ids.set(test, counted(lines.id(test.file, test.titlePath ? test.titlePath() : [test.fullTitle()])));
      return ids.get(test);
    };
    // Mocha's paths are relative to the folder that it runs in, which may be one of several
    // packages.
    const frame = /^(\s+at (?:.*\()?)([^\s()/:][^()\n:]*)(?=:\d+:\d+\)?$)/gm;
    const whole = (text) => String(text).replace(frame, (_, at, file) => at + path.resolve(file));
    const detail = (error) => whole((error && (error.stack || error.message)) || error);
    runner.on("test", (test) => cases.start(id(test)));
    runner.on("pass", (test) => cases.report(id(test), "passed", test.duration));
    runner.on("pending", (test) => cases.report(id(test), "skipped", 0));
    runner.on("fail", (test, error) => cases.report(id(test), test.type === "hook" ? "errored" : "failed", test.duration, detail(error)));
  }
};
