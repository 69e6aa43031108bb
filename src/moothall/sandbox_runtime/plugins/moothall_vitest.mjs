// A Vitest reporter that writes a line for each case.
import lines from "./moothall_lines.cjs";

const RESULTS = { pass: "passed", passed: "passed", fail: "failed", failed: "failed" };

export default class {
  cases = lines.open("vitest");

  onCollected(files = []) {
    for (const file of files) this.cases.start(lines.file(file.filepath));
  }

  onTaskUpdate() {
    this.cases.beat();
  }

  // Called before version 3.
  onFinished(files = []) {
    if (this.isDone) return;
    for (const file of files) {
      const detail = errorText(file.result?.errors);
      const numbered = lines.numbered();
      for (const task of file.tasks || []) this.walk(file, task, [], numbered);
      this.end(file.filepath, file.result?.state === "fail" && !(file.tasks || []).length, detail);
    }
  }

  end(file, broken, detail) {
    if (broken) this.cases.report(lines.file(file), "errored", 0, detail);
    else this.cases.done(lines.file(file));
  }

  walk(file, task, parentTitles, numbered) {
    const titles = [...parentTitles, task.name];
    if (task.tasks) {
      for (const child of task.tasks) this.walk(file, child, titles, numbered);
      return;
    }
    const id = numbered(lines.id(file.filepath, titles));
    const result = RESULTS[task.result?.state] || "skipped";
    this.cases.report(id, result, task.result?.duration, errorText(task.result?.errors));
  }

  // Called since version 3.
  onTestModuleStart(module) {
    this.cases.start(lines.file(module.moduleId));
  }

  onTestRunEnd(modules = []) {
    this.isDone = true;
    for (const module of modules) {
      const file = module.moduleId;
      const numbered = lines.numbered();
      for (const test of module.children.allTests()) {
        const titles = [test.name];
        for (let parent = test.parent; parent?.type === "suite"; parent = parent.parent) {
          titles.unshift(parent.name);
        }
        const result = test.result() || {};
        const id = numbered(lines.id(file, titles));
        const state = RESULTS[result.state] || "skipped";
        this.cases.report(id, state, test.diagnostic()?.duration, errorText(result.errors));
      }
      const detail = errorText(module.errors());
      this.end(file, detail, detail);
    }
  }
}

function errorText(errors = []) {
  return (errors || []).map((error) => error.stack || error.message || String(error)).join("\n");
}
