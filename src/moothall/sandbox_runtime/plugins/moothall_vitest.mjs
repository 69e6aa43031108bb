// A reporter of vitest: a line a case.
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

  // Until version 3.
  onFinished(files = []) {
    if (this.done) return;
    for (const file of files) {
      const detail = errors(file.result?.errors);
      const counted = lines.counted();
      for (const task of file.tasks || []) this.walk(file, task, [], counted);
      this.end(file.filepath, file.result?.state === "fail" && !(file.tasks || []).length, detail);
    }
  }

  end(file, broken, detail) {
    if (broken) this.cases.report(lines.file(file), "errored", 0, detail);
    else this.cases.done(lines.file(file));
  }

  walk(file, task, above, counted) {
    const titles = [...above, task.name];
    if (task.tasks) for (const inner of task.tasks) this.walk(file, inner, titles, counted);
    else this.cases.report(counted(lines.id(file.filepath, titles)), RESULTS[task.result?.state] || "skipped", task.result?.duration, errors(task.result?.errors));
  }

  // Since version 3.
  onTestModuleStart(module) {
    this.cases.start(lines.file(module.moduleId));
  }

  onTestRunEnd(modules = []) {
    this.done = true;
    for (const module of modules) {
      const file = module.moduleId;
      const counted = lines.counted();
      for (const test of module.children.allTests()) {
        const titles = [test.name];
        for (let above = test.parent; above && above.type === "suite"; above = above.parent) titles.unshift(above.name);
        const result = test.result() || {};
        this.cases.report(counted(lines.id(file, titles)), RESULTS[result.state] || "skipped", test.diagnostic()?.duration, errors(result.errors));
      }
      const broken = errors(module.errors());
      this.end(file, broken, broken);
    }
  }
}

function errors(found = []) {
  return (found || []).map((error) => error.stack || error.message || String(error)).join("\n");
}
