// A reporter of jest: a line a case.
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
    const counted = lines.counted();
    for (const item of result.testResults) {
      const id = counted(lines.id(file, [...item.ancestorTitles, item.title]));
      this.cases.report(id, RESULTS[item.status] || "skipped", item.duration, (item.failureMessages || []).join("\n"));
    }
    const broken = result.testExecError || (result.failureMessage && !result.testResults.length);
    if (broken) this.cases.report(lines.file(file), "errored", 0, result.failureMessage || String(broken));
    else this.cases.done(lines.file(file));
  }
};
