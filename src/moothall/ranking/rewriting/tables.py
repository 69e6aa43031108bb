"""Tests of Go, Rust and JavaScript that go through a table: where the column of what is expected stands in it. Pure.

Only where each row is certain to be compared: the table is written in the test and used by one loop alone, the loop compares the column
with something in its outermost block (in Go also in that of a `t.Run`), and nothing before that could leave it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moothall.ranking.syntax.statements import arguments, block, is_outermost

WANTED = re.compile(r"want|wanted|expected|exp|out|output")
GO_FAILS = r"\w+\.(?:Fatalf?|Errorf?|Fail|FailNow)\("
"""How a test of Go says that it failed."""
SMALL = r"(?:[0-9.]+e-[0-9]+|0?\.[0-9]+|\w*(?i:eps|tol|delta)\w*)"
"""How near to each other numbers have to be, as it is written."""
_LEAVES = re.compile(r"\b(?:return|continue|break|goto|[sS]kip\w*|exit|Exit|plan)\b")
_AT_ONCE = re.compile(r"\bParallel\b|\bgo\b|\bspawn\b|\basync\b|=>")
_LOOPS = {
    ".go": re.compile(r"\bfor \w+, (?P<row>\w+) := range (?P<table>\w+) \{"),
    ".rs": re.compile(r"\bfor \((?P<row>[\w, ]+)\) in &?(?P<table>\w+(?=\.(?:into_)?iter\(\) \{| \{)|(?:vec!)?\[)"),
    "": re.compile(r"\bfor \((?:const|let|var) (?P<row>\[[\w, ]+\]|\{[\w, ]+\}) of (?P<table>\w+(?=\) \{)|\[)"),
}
_RUN = re.compile(r"\b\w+\.Run\([^\n]*, func\(\w+ \*testing\.T\) \{")
_ROW = {".go": "{", ".rs": "(", "": "[{"}
_KEYED = re.compile(r"\s*(?P<name>\w+)\s*:\s*")
_FIELDS = re.compile(r"\s*(?P<names>\w+(?:, *\w+)*)\s+[\w.*\[\]]+\s*(?://[^\n]*)?\s*")


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop over a table: how its body calls a row's column, and which place the column has; where the table's bracket opens."""

    columns: Mapping[str, tuple[str, int]]
    table: int
    body: tuple[int, int]


def expected_cells(ending: str, body: str, until: int, literal: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield where the expected values of tables stand in the body of a test, where they are literals. Nothing from `until` on is sure to run."""
    for match in _LOOPS[ending].finditer(body, 0, until):
        if not is_outermost(ending, body, match.start()):
            continue
        loop = _read(ending, body, match)
        if loop is None:
            continue
        for name, (column, place) in loop.columns.items():
            at = _find_comparison(ending, body[slice(*loop.body)], name)
            if at < 0 or loop.body[0] + at >= until:
                continue
            cells = [_cell(ending, body, row, column, place) for row in arguments(ending, body, loop.table)]
            found = [cell for cell in cells if cell and literal.fullmatch(body, *cell)]
            # Side by side they may all see the same row.
            if found and (len(found) == len(cells) or not _AT_ONCE.search(body, *loop.body)):
                yield from found


def _read(ending: str, body: str, match: re.Match[str]) -> _Loop | None:
    row, table = match["row"], match["table"]
    inner = block(ending, body, body.find("{", match.end() - (ending == ".go")))
    if table.endswith("["):
        at = match.end("table") - 1
        closed = block(ending, body, at)
        inner = block(ending, body, body.find("{", closed[1])) if closed else None
        if closed and not re.fullmatch(
            r"\]\)? \{" if not ending else r"\](?:\.(?:into_)?iter\(\))? \{", body[closed[1] : (inner or closed)[0]]
        ):
            return None
    else:
        at = _find_rows(ending, body, table)
    if at < 0 or inner is None:
        return None
    if ending == ".go":
        fields = _fields(body, table)
        columns = {f"{row}.{name}": (name, place) for place, name in enumerate(fields) if WANTED.fullmatch(name)}
    else:
        names = [name.strip() for name in row.strip("[]{}").split(",")]
        columns = {name: (name, place) for place, name in enumerate(names) if WANTED.fullmatch(name)}
    return _Loop(columns, at, inner)


def _find_rows(ending: str, body: str, table: str) -> int:
    """Return where the bracket of a table's rows opens; -1 unless it is written once in the outermost block and used by the loop alone."""
    if len(re.findall(rf"(?<![\w.]){table}\b", body)) != 2:  # noqa: PLR2004 - its declaration and the loop
        return -1
    start = {
        ".go": rf"\b{table} := \[\]struct ?\{{",
        ".rs": rf"\blet {table}(?:: [^=;]+)? = &?(?:vec!)?\[",
        "": rf"\b(?:const|let|var) {table} = \[",
    }
    found = re.search(start[ending], body)
    if found is None or not is_outermost(ending, body, found.start()):
        return -1
    if ending != ".go":
        return found.end() - 1
    fields = block(ending, body, found.end() - 1)
    return fields[1] + 1 if fields and body[fields[1] : fields[1] + 2] == "}{" else -1


def _fields(body: str, table: str) -> list[str]:
    """The columns of a Go table in order; none where they cannot be read."""
    found = re.search(rf"\b{table} := \[\]struct ?\{{", body)
    fields = block(".go", body, found.end() - 1) if found else None
    names: list[str] = []
    for line in re.split(r"[;\n]", body[slice(*fields)]) if fields else ():
        read = _FIELDS.fullmatch(line)
        if read:
            names += re.split(r", *", read["names"])
        elif line.strip() and not line.strip().startswith("//"):
            return []
    return names


def _find_comparison(ending: str, text: str, name: str) -> int:
    """Return where a loop's body compares a column with something, in any case; -1 where it does not, or does more with it."""
    if ending == ".go" and (run := _RUN.search(text)) and is_outermost(ending, text, run.start()):
        inner = block(ending, text, run.end() - 1)
        if inner is None or _LEAVES.search(text, 0, run.start()):
            return -1
        at = _find_comparison_in(ending, text[slice(*inner)], name)
        outside = text[: inner[0]] + text[inner[1] :]
        return inner[0] + at if at >= 0 and not _uses(outside, name) else -1
    return _find_comparison_in(ending, text, name)


def _uses(text: str, name: str) -> list[int]:
    return [found.start() for found in re.finditer(rf"(?<![\w.]){re.escape(name)}\b", text)]


def _find_comparison_in(ending: str, text: str, name: str) -> int:
    word = re.escape(name)
    if ending == ".go":
        told = rf"\{{\s*{GO_FAILS}[^\n]*\)\s*\}}"
        init = r"(?:[^;{}\n]+; *)?"
        patterns = [
            rf"\bif {init}(?:[^;{{}}\n&|]+ != {word}|{word} != [^;{{}}\n&|]+|!reflect\.DeepEqual\([^;{{}}\n&|]+, {word}\)) {told}",
            rf"\bif {init}math\.Abs\([^;{{}}\n&|]+?\s?-\s?{word}\) >=? {SMALL} {told}",
            rf"\b(?:assert|require)\.(?:Equal|EqualValues)\(\w+, {word}, [^\n]*\)",
        ]
    elif ending == ".rs":
        patterns = [rf"\bassert_eq!\((?:[^\n;]+, [*&]?{word}|[*&]?{word}, [^\n;]+)\)"]
    else:
        patterns = [
            rf"(?<![.\w])assert\.(?:strictEqual|equal|deepStrictEqual|deepEqual)\([^\n;]+, {word}\)",
            rf"(?<![.\w])expect\([^\n;]+\)\.(?:toBe|toEqual|toStrictEqual|to\.equal|to\.eql|to\.be)\({word}\)",
        ]
    for pattern in patterns:
        found = re.search(pattern, text)
        if found and is_outermost(ending, text, found.start()) and not _LEAVES.search(text, 0, found.start()):
            said = found[0].partition("{")[0] if found[0].startswith("if") else found[0]  # without what is told of it
            rest = f"{text[: found.start()]} {text[found.end() :]}"
            if len(_uses(said, name)) == 1 and not _uses(rest, name) and not (ending == ".go" and _is_whole(said + rest, name)):
                return found.start()
    return -1


def _is_whole(text: str, name: str) -> bool:
    """Whether a row is handed on as a whole: then what is compared with its column may come from it."""
    row = name.partition(".")[0]
    return re.search(rf"(?<![\w.]){row}(?![.\w])", text.replace(f"{row} := {row}\n", "")) is not None


def _cell(ending: str, body: str, row: tuple[int, int], column: str, place: int) -> tuple[int, int] | None:
    """Return where a row has a column."""
    start = row[0] + len(body[slice(*row)]) - len(body[slice(*row)].lstrip())
    if start >= row[1] or body[start] not in _ROW[ending]:
        return None
    cells = list(arguments(ending, body, start))
    keyed = [(_KEYED.match(body, *cell), cell) for cell in cells] if body[start] == "{" else []
    for match, cell in keyed:
        if match and match["name"] == column:
            return match.end(), cell[1]
    if keyed and (ending != ".go" or any(match for match, _ in keyed)):
        return None
    return cells[place] if place < len(cells) else None
