// A Jest reporter that writes a line for each case.
"use strict";
const lines = require("./moothall_lines.cjs");
const RESULTS = { passed: "passed", failed: "failed" };

module.exports = class {
  constructor() {
    this.cases = lines.open("jest");
  }
  onTestFileStart(test) {
    this.cases.start(lines.file(test.path));
  }
  onTestCaseResult() {
    this.cases.beat();
  }
  onTestResult(test, result) {
    const file = result.testFilePath || test.path;
    const numbered = lines.numbered();
    for (const item of result.testResults) {
      const id = numbered(lines.id(file, [...item.ancestorTitles, item.title]));
      const detail = (item.failureMessages || []).join("\n");
      this.cases.report(id, RESULTS[item.status] || "skipped", item.duration, detail);
    }
    const broken = result.testExecError || (result.failureMessage && !result.testResults.length);
    if (broken) {
      this.cases.report(lines.file(file), "errored", 0, result.failureMessage || String(broken));
    } else this.cases.done(lines.file(file));
  }
};
