// A reporter of Node's test runner that writes a line for each case.
import lines from "./moothall_lines.cjs";

export default async function* report(source) {
  const cases = lines.open("node");
  const names = [];
  const numbered = lines.numbered();
  const started = []; // by depth: the last reported case, and its numbered id
  const stderr = new Map(); // file → the end of its process's stderr, which explains a failed start
  for await (const { type, data } of source) {
    if (type === "test:stderr" && data.file) {
      stderr.set(data.file, ((stderr.get(data.file) || "") + data.message).slice(-4000));
    }
    if (!["test:start", "test:pass", "test:fail"].includes(type)) continue;
    names.length = Math.min(names.length, data.nesting);
    names[data.nesting] = data.name;
    const titles = names.slice(0, data.nesting + 1);
    const isNamedAsFile = data.file === data.name || data.file?.endsWith(`/${data.name}`);
    const isFile = data.nesting === 0 && data.file && isNamedAsFile;
    const name = isFile ? lines.file(data.file) : lines.id(data.file, titles);
    if (type === "test:start" || started[data.nesting]?.name !== name) {
      started[data.nesting] = { name, id: isFile ? name : numbered(name) };
    }
    started.length = data.nesting + 1;
    const { id } = started[data.nesting];
    if (type === "test:start") {
      cases.start(id);
      continue;
    }
    const error = data.details?.error;
    const isSuite = data.details?.type === "suite" || isFile;
    const hasFailedCases = error?.failureType === "subtestsFailed";
    let result = type === "test:pass" ? "passed" : "failed";
    if (data.skip !== undefined || data.todo !== undefined) result = "skipped";
    // The cases of a suite are reported one by one.
    if (isSuite) result = result === "failed" && !hasFailedCases ? "errored" : "";
    const cause = error?.cause ?? error;
    let detail = "";
    if (result === "failed" || result === "errored") {
      detail = cause?.stack || cause?.message || String(cause);
    }
    if (isFile && result === "errored" && stderr.has(data.file)) {
      detail = `${stderr.get(data.file)}\n${detail}`;
    }
    if (error?.failureType === "testTimeoutFailure") {
      const seconds = Math.round((data.details.duration_ms || 0) / 100) / 10;
      detail = `hit the limit of ${seconds} s\n${detail}`;
    }
    cases.report(id, result, data.details?.duration_ms, detail);
    yield "";
  }
}
