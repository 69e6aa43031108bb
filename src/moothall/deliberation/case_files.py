"""The test files and cases that are about a changed file, by names and imports."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from moothall.deliberation.prompts.repository_context import looks_like_test, named_file, stem

_TEST_AFFIX = re.compile(r"^test[_-]|[_.-](?:test|tests|spec)$")
_INDEX_STEMS = frozenset({"__init__", "index", "mod", "lib"})
"""Stems of files that stand for their folder."""
_AVA_SEPARATOR = " \u203a "
_SCRIPTS = (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts")
_LIBTEST = re.compile(r"(?P<binary>[\w-]+) (?P<source>doc|\S+\.rs)(?: #\d+)?\Z")
_RELATIVE_IMPORT = re.compile(r"""["'](\.{1,2}(?:/[^"'\s]*)?)["']""")
_WORD = re.compile(r"[^\W\d_]{3,}")
_IMPORT_STATEMENT = r"^\s*(?:from|import|export|use|\}|(?:const|let|var)\b.*\brequire\b)"


def find_case_files(cases: Iterable[str], files: Sequence[str], folder: str = "") -> dict[str, str]:
    """Return the test file of each case, '' if its id names none. `folder` is the check's.

    An id starts with a path, with a Python module, or, for ava, with the file's title.
    """
    file_paths = frozenset(files)
    titles: dict[str, str] = {}
    paths: dict[str, str] = {}
    for case in cases:
        paths[case] = named_file(case.partition("::")[0], file_paths, folder)
        if not paths[case] and _AVA_SEPARATOR in case:
            titles = titles or _ava_titles(files)
            parts = case.split(_AVA_SEPARATOR)
            prefixes = (_AVA_SEPARATOR.join(parts[:size]) for size in range(len(parts) - 1, 0, -1))
            paths[case] = next((titles[head] for head in prefixes if titles.get(head)), "")
    return paths


def files_to_run(cases: Iterable[str], files: Sequence[str], folder: str = "") -> tuple[str, ...]:
    """Return the files by which cases can be run: of ids that start with a path, and of ava's."""
    paths = find_case_files(cases, files, folder)
    return tuple(
        dict.fromkeys(
            file
            for case, file in paths.items()
            if file and (_AVA_SEPARATOR in case or file.endswith(case.partition("::")[0]))
        )
    )


def _ava_titles(files: Sequence[str]) -> dict[str, str]:
    """Return the possible starts of ava's ids, each with its file; '' if two files share one."""
    by_title: dict[str, str] = {}
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
        for start in range(len(parts)):
            title = _AVA_SEPARATOR.join(parts[start:])
            by_title[title] = path if title not in by_title else ""
    return by_title


def is_about(file: str, path: str) -> bool:
    """Return True if a test file is about `path` by its name: tests/test_a.py (also of _a.py),
    a.test.ts, a_test.go; or is in a package's folder.
    """
    if not file:
        return False
    if file.endswith("_test.go"):
        return posixpath.dirname(file) == posixpath.dirname(path)
    return _TEST_AFFIX.sub("", stem(file)).strip("_") == _subject_of(path).strip("_")


def _subject_of(path: str) -> str:
    name = stem(path)
    return posixpath.basename(posixpath.dirname(path)) if name in _INDEX_STEMS else name


def find_cases_near(cases: Iterable[str], paths: Sequence[str]) -> list[str]:
    """Return the cases near the changed files, among those whose ids name no file.

    For Go, these are the cases of the package. For Rust, these are the cases of the module, its
    documentation and the integration tests of its name, and then those of its crate.
    """
    cases = [*cases]
    go_paths = [path for path in paths if path.endswith(".go")]
    rust_paths = [path for path in paths if path.endswith(".rs")]
    near_cases: dict[str, None] = {}
    if go_paths:
        packages = {case.partition("::")[0] for case in cases if "::" in case}
        shortest = min(packages, key=len, default="")
        folders = {posixpath.dirname(path) for path in go_paths}
        near_packages = {
            package
            for package in packages
            if any(_is_package(package, folder, shortest) for folder in folders)
        }
        near_cases |= dict.fromkeys(
            case for case in cases if case.partition("::")[0] in near_packages
        )
    if rust_paths:
        parts_by_case = {case: parts for case in cases if (parts := _split_libtest_case(case))}
        binaries = {binary for binary, _, _ in parts_by_case.values()}
        ranks = {
            case: min(_rust_rank(parts, path, binaries) for path in rust_paths)
            for case, parts in parts_by_case.items()
        }
        near_cases |= dict.fromkeys(
            sorted((case for case in ranks if ranks[case] < _OTHER_CRATE), key=ranks.__getitem__)
        )
    return [*near_cases]


def _is_package(package: str, folder: str, shortest: str) -> bool:
    return package.endswith(f"/{folder}") if folder else package == shortest


_OTHER_CRATE = 9


def _split_libtest_case(case: str) -> tuple[str, str, str] | None:
    """Return (binary, source, name) of a case of libtest or nextest."""
    head, mark, name = case.partition("::")
    if not mark:
        return None
    if match := _LIBTEST.match(head):
        return match["binary"].replace("-", "_"), match["source"], name
    # nextest: `crate::name`, or `crate::binary name`.
    if re.fullmatch(r"[\w-]+(?:::[\w-]+)?", head):
        return head.replace("-", "_"), "src/lib.rs", name
    return None


def _rust_rank(parts: tuple[str, str, str], path: str, binaries: AbstractSet[str]) -> int:
    """Return the distance of a case from a file: 0 same module, 1 same crate, `_OTHER_CRATE`."""
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
            return _OTHER_CRATE
        return 0 if name.startswith((f"src/{inner} - ", f"{path} - ")) else 1
    if source.startswith("tests/"):
        return 0 if stem(source) in {*modules[-1:], stem(path)} else 1
    if crate in binaries and binary != crate:
        return _OTHER_CRATE
    return 0 if not modules or name.split("::")[: len(modules)] == modules else 1


def import_pattern(paths: Sequence[str]) -> str:
    """Return a regular expression for the lines by which test files may import one of the files."""
    names = "|".join(sorted({re.escape(_subject_of(path)) for path in paths if _subject_of(path)}))
    barrel = (
        r"""["']\.{1,2}(?:/[^"']*)?["']""" if any(path.endswith(_SCRIPTS) for path in paths) else ""
    )
    return rf"{_IMPORT_STATEMENT}.*(?:\b(?:{names})\b{'|' + barrel if barrel else ''})"


def rank_importers(
    import_lines: Iterable[tuple[str, str]], paths: Sequence[str], text: str = ""
) -> Iterator[str]:
    """Yield the test files that import one of `paths` directly, then those that import a folder of
    it; of each, those named after a word of `text` first. The import lines come as (test file,
    line).
    """
    import_lines = [*import_lines]
    stems = {path.rpartition(".")[0] for path in paths}
    direct, through_folder = dict[str, None](), dict[str, None]()
    for file, line in import_lines:
        if not file.endswith(_SCRIPTS):
            direct[file] = None
            continue
        for relative in _RELATIVE_IMPORT.findall(line):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(file), relative))
            bare = re.sub(r"\.[cm]?[jt]sx?$", "", target)
            if bare in stems or f"{bare}/index" in stems:
                direct[file] = None
            folder = posixpath.dirname(bare) if posixpath.basename(bare) == "index" else bare
            if any(path.startswith(f"{folder}/") or folder in {"", "."} for path in paths):
                through_folder[file] = None
    yield from dict.fromkeys(
        (*sort_by_common_words(direct, text), *sort_by_common_words(through_folder, text))
    )


def sort_by_common_words(files: Iterable[str], text: str) -> list[str]:
    """Return the files, those whose names share a word with a text first."""
    text_words = {*_WORD.findall(text.casefold())} - {"test", "tests", "spec"}
    return sorted(
        files, key=lambda file: text_words.isdisjoint(_WORD.findall(stem(file).casefold()))
    )


def map_to_base_names(cases: Mapping[str, str], base_cases: Iterable[str]) -> dict[str, str]:
    """Return the base's names of cases that have other names in a narrower run: ava leaves out the
    common path of all files of a run, so that a case of retry.ts is named by its title alone if no
    other file runs.
    """
    base_cases = [*base_cases]
    by_suffix: dict[str, set[str]] = {}
    for case in base_cases:
        parts = case.split(_AVA_SEPARATOR)
        for start in range(1, len(parts)):
            by_suffix.setdefault(_AVA_SEPARATOR.join(parts[start:]), set()).add(case)
    known_cases = {*base_cases}
    return {
        case: next(iter(by_suffix[case]))
        for case in cases
        if case not in known_cases and len(by_suffix.get(case, ())) == 1
    }
