"""Which test files and which cases are about a changed file, by their names and imports."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from moothall.deliberation.prompts.repository_context import looks_like_test, named_file, stem

_TEST_AFFIX = re.compile(r"^test[_-]|[_.-](?:test|tests|spec)$")
_FOLDERS = frozenset({"__init__", "index", "mod", "lib"})
"""Files that stand for the folder which they lie in."""
_SEPARATOR = " \u203a "  # ava's
_SCRIPTS = (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts")
_LIBTEST = re.compile(r"(?P<binary>[\w-]+) (?P<source>doc|\S+\.rs)(?: #\d+)?\Z")
_RELATIVE = re.compile(r"""["'](\.{1,2}(?:/[^"'\s]*)?)["']""")
_WORD = re.compile(r"[^\W\d_]{3,}")
_STATEMENT = r"^\s*(?:from|import|export|use|\}|(?:const|let|var)\b.*\brequire\b)"


def find_case_files(cases: Iterable[str], files: Sequence[str], folder: str = "") -> dict[str, str]:
    """Return the test file of each case, '' where its id names none. `folder` is the check's.

    An id begins with a path or a module of Python, or, as ava's, with the file's name and its mark.
    """
    known = frozenset(files)
    titles: dict[str, str] = {}
    found: dict[str, str] = {}
    for case in cases:
        found[case] = named_file(case.partition("::")[0], known, folder)
        if not found[case] and _SEPARATOR in case:
            titles = titles or _ava_titles(files)
            parts = case.split(_SEPARATOR)
            heads = (_SEPARATOR.join(parts[:size]) for size in range(len(parts) - 1, 0, -1))
            found[case] = next((titles[head] for head in heads if titles.get(head)), "")
    return found


def files_to_run(cases: Iterable[str], files: Sequence[str], folder: str = "") -> tuple[str, ...]:
    """Return the files by which cases can be run: those of ids that begin with a path, and those of
    ava.
    """
    found = find_case_files(cases, files, folder)
    return tuple(
        dict.fromkeys(
            file
            for case, file in found.items()
            if file and (_SEPARATOR in case or file.endswith(case.partition("::")[0]))
        )
    )


def _ava_titles(files: Sequence[str]) -> dict[str, str]:
    """Return what ids of ava may begin with, each with its file, and '' where two files have
    one.
    """
    found: dict[str, str] = {}
    for path in files:
        if not path.endswith(_SCRIPTS) or not (
            looks_like_test(path) or re.search(r"(?:^|/)(?:tests?|__tests__|specs?)/", path)
        ):
            continue
        *folders, name = path.split("/")
        name = name.rpartition(".")[0]
        for ending in (".spec", ".test"):
            name = name.removesuffix(ending)
        parts = [
            *(folder for folder in folders if folder != "__tests__"),
            name.removeprefix("test-"),
        ]
        for at in range(len(parts)):
            title = _SEPARATOR.join(parts[at:])
            found[title] = path if title not in found else ""
    return found


def is_about(file: str, path: str) -> bool:
    """Whether a test file is about `path` by its name: tests/test_a.py (of _a.py too), a.test.ts,
    a_test.go; or lies in a package's folder.
    """
    if not file:
        return False
    if file.endswith("_test.go"):
        return posixpath.dirname(file) == posixpath.dirname(path)
    return _TEST_AFFIX.sub("", stem(file)).strip("_") == _subject(path).strip("_")


def _subject(path: str) -> str:
    name = stem(path)
    return posixpath.basename(posixpath.dirname(path)) if name in _FOLDERS else name


def cases_near(cases: Iterable[str], paths: Sequence[str]) -> list[str]:
    """Return the cases, of those whose ids name no file, that are about the changed files: of Go
    those of the package; of Rust those of the module, its documentation and the integration tests
    of its name, and then those of its crate.
    """
    cases = [*cases]
    go = [path for path in paths if path.endswith(".go")]
    rust = [path for path in paths if path.endswith(".rs")]
    found: dict[str, None] = {}
    if go:
        packages = {case.partition("::")[0] for case in cases if "::" in case}
        shortest = min(packages, key=len, default="")
        folders = {posixpath.dirname(path) for path in go}
        select_checks = {
            package
            for package in packages
            if any(_is_package(package, folder, shortest) for folder in folders)
        }
        found |= dict.fromkeys(case for case in cases if case.partition("::")[0] in select_checks)
    if rust:
        split = {case: parts for case in cases if (parts := _libtest(case))}
        binaries = {binary for binary, _, _ in split.values()}
        ranks = {
            case: min(_rust_rank(parts, path, binaries) for path in rust)
            for case, parts in split.items()
        }
        found |= dict.fromkeys(
            sorted((case for case in ranks if ranks[case] < _FAR), key=ranks.__getitem__)
        )
    return [*found]


def _is_package(package: str, folder: str, shortest: str) -> bool:
    return package.endswith(f"/{folder}") if folder else package == shortest


_FAR = 9


def _libtest(case: str) -> tuple[str, str, str] | None:
    """Return (binary, source, name) of a case of libtest or nextest."""
    head, mark, name = case.partition("::")
    if not mark:
        return None
    if found := _LIBTEST.match(head):
        return found["binary"].replace("-", "_"), found["source"], name
    if re.fullmatch(
        r"[\w-]+(?:::[\w-]+)?", head
    ):  # nextest: `crate::name`, or `crate::binary name`
        return head.replace("-", "_"), "src/lib.rs", name
    return None


def _rust_rank(parts: tuple[str, str, str], path: str, binaries: AbstractSet[str]) -> int:
    """Return how near a case is to a file: 0 of its module, 1 of its crate, `_FAR` of another."""
    binary, source, name = parts
    folder, _, inner = f"/{path}".rpartition("/src/")
    crate = posixpath.basename(folder).replace("-", "_")
    modules = (
        [
            part
            for part in inner.removesuffix(".rs").split("/")
            if part not in {"lib", "main", "mod"}
        ]
        if inner
        else []
    )
    if source == "doc":
        if binary in binaries and crate in binaries and binary != crate:
            return _FAR
        return 0 if name.startswith((f"src/{inner} - ", f"{path} - ")) else 1
    if source.startswith("tests/"):
        return 0 if stem(source) in {*modules[-1:], stem(path)} else 1
    if crate in binaries and binary != crate:
        return _FAR
    return 0 if not modules or name.split("::")[: len(modules)] == modules else 1


def import_pattern(paths: Sequence[str]) -> str:
    """Return a regular expression of the lines by which test files may import one of the files."""
    names = "|".join(sorted({re.escape(_subject(path)) for path in paths if _subject(path)}))
    barrel = (
        r"""["']\.{1,2}(?:/[^"']*)?["']""" if any(path.endswith(_SCRIPTS) for path in paths) else ""
    )
    return rf"{_STATEMENT}.*(?:\b(?:{names})\b{'|' + barrel if barrel else ''})"


def rank_importers(
    lines: Iterable[tuple[str, str]], paths: Sequence[str], text: str = ""
) -> Iterator[str]:
    """Yield the test files that import one of the files, those that name it first, then those that
    import a folder's index which may export it; of each those named after a word of `text` first.
    `lines` are (path of the test file, line that imports).
    """
    lines = [*lines]
    wanted = {path.rpartition(".")[0] for path in paths}
    direct, through = dict[str, None](), dict[str, None]()
    for file, line in lines:
        if not file.endswith(_SCRIPTS):
            direct[file] = None
            continue
        for found in _RELATIVE.findall(line):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(file), found))
            bare = re.sub(r"\.[cm]?[jt]sx?$", "", target)
            if bare in wanted or f"{bare}/index" in wanted:
                direct[file] = None
            folder = posixpath.dirname(bare) if posixpath.basename(bare) == "index" else bare
            if any(path.startswith(f"{folder}/") or folder in {"", "."} for path in paths):
                through[file] = None
    yield from dict.fromkeys(
        (*sort_by_common_words(direct, text), *sort_by_common_words(through, text))
    )


def sort_by_common_words(files: Iterable[str], text: str) -> list[str]:
    """Return the files, first those whose names have a word in common with a text."""
    words = {*_WORD.findall(text.casefold())} - {"test", "tests", "spec"}
    return sorted(files, key=lambda file: words.isdisjoint(_WORD.findall(stem(file).casefold())))


def names_on_base(cases: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return the names in the base of cases that have another one in a narrower run: ava leaves out
    what the paths of all files of a run share, so that a case of retry.ts is named by its title
    alone where no other file runs.
    """
    known = [*known]
    ends: dict[str, set[str]] = {}
    for case in known:
        parts = case.split(_SEPARATOR)
        for at in range(1, len(parts)):
            ends.setdefault(_SEPARATOR.join(parts[at:]), set()).add(case)
    there = {*known}
    return {
        case: next(iter(ends[case]))
        for case in cases
        if case not in there and len(ends.get(case, ())) == 1
    }
