"""Install as much of a requirements file as possible: `moothall_requirements.py must|may FILE`.

Set-up runs it after pip failed on the whole file. Development tools and repositories over ssh are
tried one by one, and failures are named. With `must`, all others have to install together; with
`may`, they are tried one by one as well if they do not. Supports Python 3.7 and later.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NOT_FOR_TESTS = re.compile(
    r"(?:tox|nox|pre[-_]commit|twine|build|black|sphinx|furo|mkdocs|myst|commitizen|bump|towncrier|ipython|jupyter|pyinstaller"
    r"|python[-_]semantic[-_]release|mike|pdoc|readme[-_]renderer|check[-_]manifest|cibuildwheel|gitlint|hatch$|pdm$|poetry$|uv$)",
    re.IGNORECASE,
)
"""Names of development tools that tests do not need."""
_SSH = re.compile(r"\bssh://|\bgit@[\w.-]+:")
_REASON = re.compile(r"\s*(?:ssh: |fatal: |(?:ERROR|error): (?!subprocess-exited-with-error))")
_MAX_DEPTH = 10
_PIP = (
    sys.executable,
    "-m",
    "pip",
    "install",
    "--quiet",
    "--no-input",
    "--disable-pip-version-check",
)


def read_lines(path: str, depth: int = 0) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a file and of those that it includes, and whether each is an option."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read().replace("\\\n", " ")
    for raw_line in text.split("\n"):
        line = re.sub(r"(?:^|\s)#.*$", "", raw_line).strip()
        include = re.match(r"(-r|--requirement|-c|--constraint)[ =]\s*(\S+)$", line)
        included_path = os.path.join(os.path.dirname(path), include[2]) if include else ""
        if include and include[1] in ("-r", "--requirement"):
            if depth < _MAX_DEPTH and os.path.exists(included_path):
                yield from read_lines(included_path, depth + 1)
        elif include:
            yield f"-c {os.path.abspath(included_path)}", True
        elif line:
            yield line, line.startswith("-") and not re.match(r"(?:-e|--editable)[ =]", line)


def _install(options: Sequence[str], lines: Sequence[str]) -> str:
    """Install lines together; return '' on success, else the reason."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join((*options, *lines, "")))
        file.flush()
        command = (*_PIP, "-r", file.name)
        process = subprocess.run(  # noqa: S603 - pip
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    if process.returncode == 0:
        return ""
    printed = process.stdout.decode("utf-8", "replace")
    reasons = [line.strip() for line in printed.split("\n") if _REASON.match(line)]
    return (reasons or printed.strip().split("\n"))[0][:200] or "pip printed nothing"


def main(mode: str, path: str) -> int:
    """Install, and return the exit code."""
    lines = list(dict.fromkeys(read_lines(path)))
    options = [line for line, is_option in lines if is_option]
    requirements = [line for line, is_option in lines if not is_option]
    doubtful = [line for line in requirements if NOT_FOR_TESTS.match(line) or _SSH.search(line)]
    required = [line for line in requirements if line not in doubtful]
    failure = _install(options, required) if required else ""
    if failure and mode == "must":
        sys.stdout.write(f"{failure}\n")
        return 1
    for line in (*(required if failure else ()), *doubtful):
        line_failure = _install(options, [line])
        if line_failure:
            sys.stdout.write(f"left out: {line[:150]} ({line_failure})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
