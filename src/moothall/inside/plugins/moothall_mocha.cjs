// A reporter of mocha: what `spec` shows, and a line a case.
"use strict";
const lines = require("./moothall_lines.cjs");
const base = Object.keys(require.cache).find((name) => /[\\/]mocha[\\/]lib[\\/]reporters[\\/]base\.js$/.test(name));
const Spec = require(base.replace(/base\.js$/, "spec.js"));

module.exports = class extends Spec {
  constructor(runner, options) {
    super(runner, options);
    const told = lines.open("mocha");
    const id = (test) => lines.id(test.file, test.titlePath ? test.titlePath() : [test.fullTitle()]);
    const said = (error) => (error && (error.stack || error.message)) || String(error);
    runner.on("test", (test) => told.start(id(test)));
    runner.on("pass", (test) => told.tell(id(test), "passed", test.duration));
    runner.on("pending", (test) => told.tell(id(test), "skipped", 0));
    runner.on("fail", (test, error) => told.tell(id(test), test.type === "hook" ? "errored" : "failed", test.duration, said(error)));
  }
};
