// Writes lines of JSON for the reporters beside it.
"use strict";
const fs = require("fs");
const path = require("path");
const MAX_CHARS = 6000;

exports.open = function open(runner) {
  const folder = process.env.MOOTHALL_REPORTS;
  if (!folder) return { start() {}, report() {}, beat() {}, done() {} };
  const file = fs.openSync(path.join(folder, `${runner}-${process.pid}-${Date.now()}.jsonl`), "a");
  const write = (line) => fs.writeSync(file, JSON.stringify(line) + "\n");
  return {
    beat: () => write({}),
    done: (id) => write({ case: id, result: "" }),
    start: (id) => write({ start: id }),
    report: (id, result, ms, detail) => write({ case: id, result, ms: Math.round(ms || 0), ...(detail ? { detail: clip(String(detail)) } : {}) }),
  };
};

function clip(text) {
  return text.length <= MAX_CHARS ? text : `${text.slice(0, MAX_CHARS / 3)}\n[…]\n${text.slice(-MAX_CHARS * 2 / 3)}`;
}

exports.id = (file, titles) => (file ? `${path.relative(process.cwd(), file)}::${titles.join(" > ")}` : titles.join(" > "));
// Returns a function that numbers cases of the same name in a file, by their order, which is the same in each run.
exports.counted = () => {
  const times = new Map();
  return (id) => {
    const count = (times.get(id) || 0) + 1;
    times.set(id, count);
    return count === 1 ? id : `${id} #${count}`;
  };
};
exports.file = (file) => path.relative(process.cwd(), file);
