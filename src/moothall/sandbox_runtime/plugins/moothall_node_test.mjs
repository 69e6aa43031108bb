// A reporter of Node's own test runner: a line a case.
import lines from "./moothall_lines.cjs";

export default async function* report(source) {
  const cases = lines.open("node");
  const names = [];
  const counted = lines.counted();
  const begun = []; // by depth: the last reported case, with its number among cases of one name
  const printed = new Map(); // file → the end of its process's stderr, which explains a failed start
  for await (const { type, data } of source) {
    if (type === "test:stderr" && data.file) printed.set(data.file, ((printed.get(data.file) || "") + data.message).slice(-4000));
    if (!["test:start", "test:pass", "test:fail"].includes(type)) continue;
    names.length = Math.min(names.length, data.nesting);
    names[data.nesting] = data.name;
    const titles = names.slice(0, data.nesting + 1);
    const whole = data.nesting === 0 && data.file && (data.file === data.name || data.file.endsWith(`/${data.name}`));
    const name = whole ? lines.file(data.file) : lines.id(data.file, titles);
    if (type === "test:start" || begun[data.nesting]?.name !== name) begun[data.nesting] = { name, id: whole ? name : counted(name) };
    begun.length = data.nesting + 1;
    const { id } = begun[data.nesting];
    if (type === "test:start") {
      cases.start(id);
      continue;
    }
    const error = data.details?.error;
    const suite = data.details?.type === "suite" || whole;
    const children = error?.failureType === "subtestsFailed";
    let result = data.skip !== undefined || data.todo !== undefined ? "skipped" : type === "test:pass" ? "passed" : "failed";
    if (suite) result = result === "failed" && !children ? "errored" : ""; // its cases are reported one by one
    const cause = error?.cause ?? error;
    let detail = result === "failed" || result === "errored" ? cause?.stack || cause?.message || String(cause) : "";
    if (whole && result === "errored" && printed.has(data.file)) detail = `${printed.get(data.file)}\n${detail}`;
    if (error?.failureType === "testTimeoutFailure") detail = `hit the limit of ${Math.round((data.details.duration_ms || 0) / 100) / 10} s\n${detail}`;
    cases.report(id, result, data.details?.duration_ms, detail);
    yield "";
  }
}
