"""The parts of a repository that are relevant to a task: the code around given lines, a short
example function, and a map of the rest.

The map is built like aider's: definitions and references from tree-sitter grammars, and files
ranked by a PageRank with a preference for names in the task, its failing tests and their
tracebacks. The same files and arguments give the same bytes. Runs in a child of the executor. Not
in the catalogue: only the trusted side uses it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

from moothall.sandbox_runtime.file_access import TextLimits, ToolFailure, read_text
from moothall.sandbox_runtime.syntax import (
    Definition,
    definitions,
    language_of,
    library,
    parse,
    parser,
)

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from tree_sitter import Node, Query

_CALLS = {
    "python": """
        (call function: [(identifier) @r (attribute attribute: (identifier) @r)])
        (import_from_statement name: (dotted_name (identifier) @r))
        (class_definition superclasses: (argument_list (identifier) @r))
        (decorator (identifier) @r) (type (identifier) @r)""",
    "javascript": """
        (call_expression function: [(identifier) @r (member_expression property: (property_identifier) @r)])
        (new_expression constructor: (identifier) @r) (import_specifier name: (identifier) @r)""",  # noqa: E501 - a line of embedded text
    "go": """
        (call_expression function: [(identifier) @r (selector_expression field: (field_identifier) @r)])
        (type_identifier) @r""",  # noqa: E501 - a line of embedded text
    "rust": """
        (call_expression function: [(identifier) @r (scoped_identifier name: (identifier) @r)
                                    (field_expression field: (field_identifier) @r)])
        (macro_invocation macro: (identifier) @r) (type_identifier) @r""",
}
_CALLS["typescript"] = _CALLS["tsx"] = _CALLS["javascript"] + " (type_identifier) @r"
_SKIPPED = frozenset({"vendor", "third_party", "dist", "site-packages", "testdata"})
_TEST = re.compile(
    r"(?:^|/)(?:tests?|__tests__|specs?|testing)(?:/|$)|(?:^|/)test_|_test\.|\.(?:test|spec)\.|(?:^|/)conftest\.py$"
)
_LONG_LINES = 300  # average bytes of a line in generated files
_DAMPING, _PAGE_RANK_ROUNDS = 0.85, 30
_SPAN_ROWS, _CONTEXT_ROWS, _SPAN_CHARS = 80, 12, 8000
_EXAMPLE_ROWS, _EXAMPLE_CHARS = 9, 320
_SIGNATURE_CHARS = 120


@dataclass(slots=True)
class _Source:
    """A parsed file. `calls` counts its references to each name."""

    path: str
    language: str
    data: bytes
    root: Node
    definitions: list[Definition]
    calls: Counter[str]


@lru_cache(maxsize=8)
def _query(language: str) -> Query:
    query: Query = library().Query(parser(language).language, _CALLS[language])
    return query


def survey(
    root: int, files: Sequence[tuple[str, int]], args: Mapping[str, Any], limits: TextLimits
) -> dict[str, Any]:
    """Return `spans` ({path, name, line, text}), `homes` (paths), `example` (a span or nothing) and
    `map`.

    `files` are the paths and sizes of all files. Arguments: `frames` (lists of path and line),
    `tests` (lists of path and name), `paths` and `words` with a higher weight, `names` whose
    `homes` (defining files) are wanted, `known` (if not empty, only these paths are read), and the
    limits `files`, `bytes`, `map_chars`.
    """
    seeds = list(
        dict.fromkeys(
            [path for path, _ in args["frames"]]
            + [path for path, _ in args["tests"]]
            + list(args["paths"])
        )
    )
    sources = {source.path: source for source in _read_sources(root, files, seeds, args, limits)}
    spans, seen_keys = [], set()
    for path, line in args["frames"]:
        source = sources.get(path)
        if source is not None and (span := _span_around(source, int(line))) is not None:
            spans.append(span)
    for path, name in args["tests"]:
        source = sources.get(path)
        spans += (
            [
                _span(source, item)
                for item in source.definitions
                if item.parts[-1] == name and not item.is_type
            ]
            if source
            else []
        )
    spans = [
        span
        for span in spans
        if (key := (span["path"], span["line"])) not in seen_keys and not seen_keys.add(key)  # type: ignore[func-returns-value]
    ]
    ranked = _rank(list(sources.values()), set(seeds), set(args["words"]))
    return {
        "spans": spans,
        "homes": _find_defining_files(sources.values(), args["names"]),
        "example": _example(sources, seeds, [source for source, _ in ranked], spans),
        "map": _draw_map(ranked, int(args["map_chars"])),
        "parsed": len(sources),
    }


def _read_sources(
    root: int,
    files: Sequence[tuple[str, int]],
    seeds: Sequence[str],
    args: Mapping[str, Any],
    limits: TextLimits,
) -> Iterator[_Source]:
    """Parse the files nearest to the seeds first, within the limits."""
    folders = {path.rpartition("/")[0] for path in seeds}

    def distance(path: str) -> tuple[bool, bool, int, str]:
        folder = path.rpartition("/")[0]
        return (
            path not in seeds,
            _TEST.search(path) is not None,
            min((_folder_distance(folder, seed_folder) for seed_folder in folders), default=0),
            path,
        )

    candidates = [
        (path, size)
        for path, size in files
        if language_of(path) and not _SKIPPED.intersection(path.split("/")[:-1])
    ]
    if tracked := frozenset(args.get("known") or ()):
        candidates = [(path, size) for path, size in candidates if path in tracked]
    modules = {path for path, _ in candidates}
    candidates = [
        (path, size) for path, size in candidates if not _is_stub_of(path, modules) or path in seeds
    ]
    remaining_bytes = int(args["bytes"])
    for path, size in sorted(candidates, key=lambda item: distance(item[0]))[: int(args["files"])]:
        if size > remaining_bytes or not size:
            continue
        try:
            data = read_text(root, path, limits).encode("utf-8", "surrogateescape")
        except ToolFailure:
            continue
        if len(data) > _LONG_LINES * (data.count(b"\n") + 1):
            continue
        remaining_bytes -= size
        language = language_of(path)
        tree = parse(language, data)
        captured = library().QueryCursor(_query(language)).captures(tree).get("r", [])
        calls = Counter(
            data[node.start_byte : node.end_byte].decode("utf-8", "replace") for node in captured
        )
        yield _Source(path, language, data, tree, list(definitions(tree, language)), calls)


def _is_stub_of(path: str, modules: set[str]) -> bool:
    """Return whether a path is the stub of an existing module."""
    return path.endswith(".pyi") and path[:-1] in modules


def _folder_distance(first: str, second: str) -> int:
    """Return the number of steps between two folders."""
    first_parts, second_parts = (
        first.split("/") if first else [],
        second.split("/") if second else [],
    )
    common = 0
    while (
        common < min(len(first_parts), len(second_parts))
        and first_parts[common] == second_parts[common]
    ):
        common += 1
    return len(first_parts) + len(second_parts) - 2 * common


def _span_around(source: _Source, line: int) -> dict[str, Any] | None:
    """Return the function around a line; outside of functions, the statement or some lines."""
    row = line - 1
    rows = source.data.count(b"\n") + 1
    if not 0 <= row < rows:
        return None
    enclosing = [
        item
        for item in definitions(source.root, source.language, deep=True)
        if item.line <= line <= item.last_line and not item.is_type
    ]
    short_enough = [item for item in enclosing if item.last_line - item.line < _SPAN_ROWS]
    if short_enough:
        return _span(source, short_enough[0])
    node: Node | None = source.root
    best = None
    while node is not None and best is None:
        node = next(
            (
                child
                for child in node.named_children
                if child.start_point[0] <= row <= child.end_point[0]
            ),
            None,
        )
        if node is not None and node.end_point[0] - node.start_point[0] < _SPAN_ROWS:
            best = node
    first_row, last_row = (
        (best.start_point[0], best.end_point[0])
        if best is not None
        else (max(row - _CONTEXT_ROWS, 0), row + _CONTEXT_ROWS)
    )
    text = b"\n".join(source.data.split(b"\n")[first_row : last_row + 1]).decode("utf-8", "replace")
    return {
        "path": source.path,
        "name": enclosing[-1].label(source.language) if enclosing else "",
        "line": first_row + 1,
        "text": text[:_SPAN_CHARS],
    }


def _find_defining_files(sources: Iterable[_Source], names: Sequence[str]) -> list[str]:
    """Return the defining files of the names that only one file defines."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        for item in source.definitions:
            if len(item.parts) == 1 and not _TEST.search(source.path):
                places[item.parts[0]].append(source.path)
    return list(
        dict.fromkeys(places[name][0] for name in names if len(set(places.get(name, ()))) == 1)
    )


def _text(source: _Source, item: Definition) -> str:
    """Return a definition's text with the indentation of its first line."""
    start = source.data.rfind(b"\n", 0, item.start) + 1
    return source.data[start : item.end].decode("utf-8", "replace").replace("\r\n", "\n")


def _span(source: _Source, item: Definition) -> dict[str, Any]:
    return {
        "path": source.path,
        "name": item.label(source.language),
        "line": item.line,
        "text": _text(source, item)[:_SPAN_CHARS],
    }


def _rank(
    sources: Sequence[_Source], seeds: set[str], words: set[str]
) -> list[tuple[_Source, dict[str, float]]]:
    """Return the sources, most relevant first, each with the weights of the names that it
    defines.
    """
    defines: dict[str, list[int]] = defaultdict(list)
    for number, source in enumerate(sources):
        for name in dict.fromkeys(item.parts[-1] for item in source.definitions):
            defines[name].append(number)
    edges: list[list[tuple[int, str, float]]] = []
    for source in sources:
        source_weight = 10.0 if source.path in seeds else 1.0
        edges.append(
            [
                (
                    target,
                    name,
                    source_weight
                    * _reference_weight(name, len(defines[name]), words)
                    * sqrt(count),
                )
                for name, count in sorted(source.calls.items())
                if name in defines
                for target in defines[name]
                if sources[target] is not source
            ]
        )
    start = [
        (100.0 if source.path in seeds else 0.0)
        + sum(10.0 for item in source.definitions if item.parts[-1] in words)
        + 1.0
        for source in sources
    ]
    rank = _page_rank(edges, start)
    names: list[dict[str, float]] = [
        dict.fromkeys((item.parts[-1] for item in source.definitions), 0.0) for source in sources
    ]
    for number, outgoing in enumerate(edges):
        total = sum(weight for _, _, weight in outgoing)
        for target, name, weight in outgoing:
            names[target][name] += rank[number] * weight / total
    for number, weights in enumerate(names):
        if _TEST.search(sources[number].path):
            weights.clear()  # relevant tests are shown in full
        for name in weights:
            weights[name] += rank[number] * (0.1 if name in words else 0.001)
    order = sorted(range(len(sources)), key=lambda number: (-rank[number], sources[number].path))
    return [(sources[number], names[number]) for number in order]


def _reference_weight(name: str, definition_count: int, words: set[str]) -> float:
    """Return the weight of a reference to a name: high if the task mentions it, low if many files
    define it.
    """
    weight = 10.0 if name in words else 1.0
    return weight * (0.1 if name.startswith("_") or definition_count > 5 else 1.0)  # noqa: PLR2004 - as aider's


def _page_rank(
    edges: Sequence[Sequence[tuple[int, str, float]]], start: Sequence[float]
) -> list[float]:
    share = sum(start) or 1.0
    preference = [weight / share for weight in start]
    totals = [sum(weight for _, _, weight in outgoing) for outgoing in edges]
    rank = preference
    for _ in range(_PAGE_RANK_ROUNDS):
        dangling = sum(value for value, total in zip(rank, totals, strict=True) if not total)
        new_rank = [(1 - _DAMPING + _DAMPING * dangling) * weight for weight in preference]
        for number, outgoing in enumerate(edges):
            for target, _name, weight in outgoing:
                new_rank[target] += _DAMPING * rank[number] * weight / totals[number]
        rank = new_rank
    return rank


def _draw_map(ranked: Sequence[tuple[_Source, dict[str, float]]], remaining: int) -> str:
    """Return the files and signatures that fit, the best ones first; files are in the order of
    their rank, definitions in the order of their lines.
    """
    best = sorted(
        (
            (weight, number, index)
            for number, (source, names) in enumerate(ranked)
            for index, item in enumerate(source.definitions)
            if item.node.type != "impl_item"
            and not item.is_stub
            and (weight := names.get(item.parts[-1], 0.0)) > 0
        ),
        key=lambda item: (-item[0], item[1], item[2]),
    )
    chosen: dict[int, set[int]] = defaultdict(set)
    for _weight, number, index in best:
        source = ranked[number][0]
        cost = (
            len(_row(source, source.definitions[index]))
            + 1
            + (0 if number in chosen else len(source.path) + 2)
        )
        if cost > remaining:
            break
        remaining -= cost
        chosen[number].add(index)
    lines = []
    for number in sorted(chosen):
        source = ranked[number][0]
        lines += [
            f"{source.path}:",
            *(_row(source, source.definitions[index]) for index in sorted(chosen[number])),
        ]
    return "\n".join(lines)


def _row(source: _Source, item: Definition) -> str:
    signature = item.signature(source.data)[:_SIGNATURE_CHARS]
    is_member = len(item.parts) > 1
    if not is_member:
        return f"  {signature}"
    container = item.label(source.language)[: -len(item.parts[-1])]
    return (
        f"  {container[:-1].rstrip(':.')}: {signature}"
        if source.language != "go"
        else f"  {signature}"
    )


def _example(
    sources: Mapping[str, _Source],
    seeds: Sequence[str],
    ranked: Sequence[_Source],
    spans: Sequence[Mapping[str, Any]],
) -> dict[str, Any] | None:
    """Return a short function of the code at hand, preferably one that need not be changed, without
    strings that JSON would escape.
    """
    target_keys = {(span["path"], span["name"]) for span in spans}
    seed_sources = [sources[path] for path in seeds if path in sources]
    order = [
        path
        for path in dict.fromkeys(source.path for source in (*seed_sources, *ranked))
        if not _TEST.search(path)
    ]
    fallback: dict[str, Any] | None = None
    for path in order:
        source = sources[path]
        for item in source.definitions:
            text = _text(source, item)
            if (
                item.is_type
                or not 1 < text.count("\n") + 1 <= _EXAMPLE_ROWS
                or len(text) > _EXAMPLE_CHARS
            ):
                continue
            if (
                '"' in text
                or "\\" in text
                or (
                    not text.isprintable()
                    and not text.replace("\n", "").replace("\t", "").isprintable()
                )
            ):
                continue
            example = {**_span(source, item), "text": _dedent(text)}
            if (path, example["name"]) not in target_keys:
                return example
            fallback = fallback or example
    return fallback


def _dedent(text: str) -> str:
    rows = text.split("\n")
    lead = rows[0][: len(rows[0]) - len(rows[0].lstrip())]
    return "\n".join(row.removeprefix(lead) for row in rows)
