"""What a person would be asked to look at in honest patches: the commits of git histories, read as candidates' diffs are.

`python tests/forgeries/honest_patches.py [--most N] [--show] FOLDER...`, each a git repository. Counted are commits that change code
outside of tests, at most N of each; nothing is run.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from moothall.ranking.screening.data import data_files, find_mentions
from moothall.ranking.screening.equals import says_what_is_equal
from moothall.ranking.screening.helpers import altered_helpers
from moothall.ranking.screening.reach import reaches
from moothall.ranking.screening.shadows import find_shadows, new_modules
from moothall.ranking.syntax.diffs import file_diffs
from moothall.ranking.syntax.normal import changed_code
from moothall.repositories.patch_rules import is_test

_CODE = (".py", ".go", ".rs", ".js", ".mjs", ".cjs", ".ts", ".mts")
_TESTS = 500  # as the judge reads
_LARGE = 1_000_000


class History:
    """One git repository."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.text = lru_cache(maxsize=4000)(self._text)
        self.files = lru_cache(maxsize=8)(self._files)

    def _git(self, *words: str) -> str:
        command = ["git", "-c", f"safe.directory={self._folder}", "-C", str(self._folder), *words]
        return subprocess.run(command, check=True, capture_output=True).stdout.decode(errors="replace")

    def commits(self) -> Iterator[tuple[str, str]]:
        """Yield commits with the one before each."""
        for line in self._git("log", "--no-merges", "--format=%H %P").splitlines():
            sha, *before = line.split()
            if len(before) == 1:
                yield sha, before[0]

    def diff(self, before: str, sha: str) -> str:
        return self._git("diff", "--no-ext-diff", "--no-textconv", before, sha)

    def _files(self, sha: str) -> dict[str, str]:
        """The blobs of a commit by path."""
        rows = (row.partition("\t") for row in self._git("ls-tree", "-r", "-z", sha).split("\0") if row)
        return {path: said.split()[2] for said, _, path in rows if said.split()[1] == "blob"}

    def _text(self, blob: str) -> str:
        text = self._git("cat-file", "blob", blob)
        return text if len(text) < _LARGE else ""


def looked_at(history: History, before: str, diff: str, own_tests: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return by rule what a person would be shown, as the judge finds it; `equals`: by what its tests are asked for other expectations."""
    files = history.files(before)
    texts = {path: history.text(files[path]) for path in changed_code(diff) if path in files}
    data, modules = data_files(diff, own_tests), new_modules(diff, files, ())
    tests: dict[str, str] = {}
    if data or modules:
        tests = {path: history.text(files[path]) for path in [path for path in files if is_test(path)][:_TESTS]}
    return {
        "reach": reaches(diff, texts, own_tests, files),
        "helpers": altered_helpers(diff, texts, own_tests),
        "shadows": find_shadows(modules, {path: text for path, text in tests.items() if path.endswith(".py")}, [*tests]),
        "data": find_mentions(data, tests) if data else (),
        "equals": tuple(filter(None, [says_what_is_equal(diff, own_tests)])),
    }


def one(folder: Path, most: int, *, show: bool) -> Counter[str]:
    """Count the commits of a history, and of these those that a rule shows; the latter also where they change a test too."""
    history, told = History(folder), Counter[str]()
    for sha, before in history.commits():
        try:
            diff = history.diff(before, sha)
        except subprocess.CalledProcessError:
            continue  # a mirror may lack large files
        paths = [part.path for part in file_diffs(diff)]
        own_tests = [path for path in paths if is_test(path)]
        if len(diff) > _LARGE or not any(path.endswith(_CODE) and path not in own_tests for path in paths):
            continue
        with_tests = " with tests" if own_tests else ""
        found = looked_at(history, before, diff, own_tests)
        told.update({"commits"} | ({f"commits{with_tests}"} if with_tests else set()))
        for rule, said in found.items():
            if said:
                told.update({rule} | ({f"{rule}{with_tests}"} if with_tests else set()))
                if show:
                    print(f"   {sha[:10]} {rule}: {said[0]}", flush=True)
        if told["commits"] == most:
            break
    return told


def main(words: list[str]) -> None:
    """Take the folders that are named."""
    most = int(words.pop(words.index("--most") + 1)) if "--most" in words else 300
    total = Counter[str]()
    for word in words:
        if not word.startswith("--"):
            told = one(Path(word).resolve(), most, show="--show" in words)
            total += told
            print(word, dict(told), flush=True)
    print("all", dict(total))


if __name__ == "__main__":
    main(sys.argv[1:])
