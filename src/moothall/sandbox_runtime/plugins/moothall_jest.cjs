// A reporter of jest: a line a case.
"use strict";
const lines = require("./moothall_lines.cjs");
const RESULTS = { passed: "passed", failed: "failed" };

module.exports = class {
  constructor() {
    this.told = lines.open("jest");
  }
  onTestFileStart(test) {
    this.told.start(lines.file(test.path));
  }
  onTestCaseResult() {
    this.told.beat();
  }
  onTestResult(test, result) {
    const file = result.testFilePath || test.path;
    const counted = lines.counted();
    for (const item of result.testResults) {
      const id = counted(lines.id(file, [...item.ancestorTitles, item.title]));
      this.told.tell(id, RESULTS[item.status] || "skipped", item.duration, (item.failureMessages || []).join("\n"));
    }
    const broken = result.testExecError || (result.failureMessage && !result.testResults.length);
    if (broken) this.told.tell(lines.file(file), "errored", 0, result.failureMessage || String(broken));
    else this.told.done(lines.file(file));
  }
};
