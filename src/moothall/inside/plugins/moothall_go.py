"""Keeps the test binaries that `go test -exec` would run, and runs them later, as `go test -json` does: see `inside/built.py`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

_SAID = re.compile(r"( *)(?:=== |--- )(RUN|NAME|CONT|PASS|FAIL|SKIP):? *(\S*)")
_ACTIONS = {"RUN": "run", "PASS": "pass", "FAIL": "fail", "SKIP": "skip"}


def keep(folder: str, binary: str, args: list[str]) -> int:
    """Keep a binary, which is gone when its command ends, with what it is run with."""
    place = tempfile.mkdtemp(dir=folder)
    shutil.copy2(binary, place)
    said = {
        "kept": os.path.join(place, os.path.basename(binary)),
        "binary": binary,
        "args": args,
        "folder": os.getcwd(),
    }
    with open(os.path.join(place, "kept.json"), "w", encoding="utf-8") as file:
        json.dump(said, file)
    return 0


def run(folder: str) -> int:
    """Run those that were kept, each in its package's folder, and tell of them in lines of JSON."""
    code = 0
    for place in sorted(os.listdir(folder)):
        with open(os.path.join(folder, place, "kept.json"), encoding="utf-8") as file:
            kept = json.load(file)
        at = kept["folder"]
        os.makedirs(os.path.dirname(kept["binary"]), exist_ok=True)  # what is run sees no difference to what `go test` runs
        shutil.move(kept["kept"], kept["binary"])
        for arg in kept["args"]:
            if arg.startswith("-test.gocoverdir="):
                os.makedirs(arg.partition("=")[2], exist_ok=True)
        listed = subprocess.run(["go", "list", "-e"], cwd=at, stdout=subprocess.PIPE, check=True)  # noqa: S607 - as the check
        argv, env = [kept["binary"], *kept["args"]], dict(os.environ, PWD=at)
        with subprocess.Popen(argv, cwd=at, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:  # noqa: S603 - as above
            told = Told(listed.stdout.decode().strip(), marked="-test.v=test2json" in kept["args"])
            for line in running.stdout or ():
                told.line(line.decode("utf-8", "replace"))
        if running.returncode:
            told.say("fail")
            code = 1
    return code


class Told:
    """Tells what a test binary prints as `go test -json` does. `marked`: what the binary says of tests begins with a mark."""

    def __init__(self, package: str, *, marked: bool) -> None:
        self._package = package
        self._mark = "\x16" if marked else ""
        self._test = ""

    def line(self, text: str) -> None:
        """Read one; of those with a mark one may hold several."""
        first, *marked = text.split(self._mark) if self._mark else ("", text)
        if first:
            self.say("output", self._test, Output=first)
        for said in marked:
            found = _SAID.match(said)
            if found and (not found[1] or not self._mark):
                self._test = found[3]
                if found[2] in _ACTIONS:
                    self.say(_ACTIONS[found[2]], self._test)
            else:
                self.say("output", self._test, Output=said)

    def say(self, action: str, test: str = "", **more: str) -> None:
        """Write a line."""
        sys.stdout.write(json.dumps(dict(more, Action=action, Package=self._package, Test=test)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _, command, folder, *rest = sys.argv
    sys.exit(keep(folder, rest[0], rest[1:]) if command == "keep" else run(folder))
