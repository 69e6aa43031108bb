// Writes lines of JSON for the reporters in this folder.
"use strict";
const fs = require("fs");
const path = require("path");
const MAX_CHARS = 6000;

exports.open = function open(runner) {
  const folder = process.env.MOOTHALL_REPORTS;
  if (!folder) return { start() {}, report() {}, beat() {}, done() {} };
  const name = `${runner}-${process.pid}-${Date.now()}.jsonl`;
  const file = fs.openSync(path.join(folder, name), "a");
  const write = (line) => fs.writeSync(file, JSON.stringify(line) + "\n");
  return {
    beat: () => write({}),
    done: (id) => write({ case: id, result: "" }),
    start: (id) => write({ start: id }),
    report: (id, result, ms, detail) => {
      const line = { case: id, result, ms: Math.round(ms || 0) };
      write(detail ? { ...line, detail: truncate(String(detail)) } : line);
    },
  };
};

function truncate(text) {
  if (text.length <= MAX_CHARS) return text;
  return `${text.slice(0, MAX_CHARS / 3)}\n[…]\n${text.slice(-MAX_CHARS * 2 / 3)}`;
}

exports.id = (file, titles) => {
  const name = titles.join(" > ");
  return file ? `${path.relative(process.cwd(), file)}::${name}` : name;
};
// Returns a function that numbers cases of the same name in a file by their order, which is the
// same in each run.
exports.numbered = () => {
  const counts = new Map();
  return (id) => {
    const count = (counts.get(id) || 0) + 1;
    counts.set(id, count);
    return count === 1 ? id : `${id} #${count}`;
  };
};
exports.file = (file) => path.relative(process.cwd(), file);
