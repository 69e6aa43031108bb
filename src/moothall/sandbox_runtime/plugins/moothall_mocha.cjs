// A Mocha reporter: prints the output of `spec`, and writes a line for each case.
"use strict";
const path = require("path");
const lines = require("./moothall_lines.cjs");
const basePath = /[\\/]mocha[\\/]lib[\\/]reporters[\\/]base\.js$/;
const base = Object.keys(require.cache).find((name) => basePath.test(name));
const spec = require(base.replace(/base\.js$/, "spec.js"));
const Spec = spec.Spec || spec; // since Mocha 12, it is one of several exports

module.exports = class extends Spec {
  constructor(runner, options) {
    super(runner, options);
    const cases = lines.open("mocha");
    const numbered = lines.numbered();
    const ids = new WeakMap();
    const id = (test) => {
      if (!ids.has(test)) {
        const titles = test.titlePath ? test.titlePath() : [test.fullTitle()];
        ids.set(test, numbered(lines.id(test.file, titles)));
      }
      return ids.get(test);
    };
    // Mocha prints paths relative to its working directory, which may be one of several packages.
    const frame = /^(\s+at (?:.*\()?)([^\s()/:][^()\n:]*)(?=:\d+:\d+\)?$)/gm;
    const resolvePaths = (text) =>
      String(text).replace(frame, (_, prefix, file) => prefix + path.resolve(file));
    const detailOf = (error) => resolvePaths((error && (error.stack || error.message)) || error);
    runner.on("test", (test) => cases.start(id(test)));
    runner.on("pass", (test) => cases.report(id(test), "passed", test.duration));
    runner.on("pending", (test) => cases.report(id(test), "skipped", 0));
    runner.on("fail", (test, error) => {
      const result = test.type === "hook" ? "errored" : "failed";
      cases.report(id(test), result, test.duration, detailOf(error));
    });
  }
};
