"""`files.edit`: search and replace. An exact match is tried first, then one with other spaces at
line ends and one other indentation.

It never guesses between two matches. If there is no match, the error shows the most similar text of
the file. Runs in a child of the executor.
"""

from __future__ import annotations

from collections import Counter

from moothall.sandbox_runtime.file_access import (
    TextLimits,
    ToolFailure,
    clean_for_writing,
    convert_line_ends,
    line_end,
    read_encoded,
    split_rows,
    write_text,
)

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_PLACES_SHOWN = 8
_NEAREST_ROWS = 30
_NEAREST_CHARS = 3000
_COMPARED_ROWS = 3000
_COMPARED_CHARS = 200
_MIN_SIMILARITY = 0.6


def edit(root: int, args: Mapping[str, Any], limits: TextLimits) -> dict[str, Any]:
    """Replace `old`, which must occur exactly `count` times; 0 means every occurrence."""
    path = clean_for_writing(args["path"])
    text, encoding = read_encoded(root, path, limits)
    edited, replaced = replace(path, text, args["old"], args["new"], args.get("count", 1))
    write_text(root, path, edited, limits, encoding=encoding)
    return {"path": path, "replaced": replaced}


def replace(path: str, text: str, old: str, new: str, count: int = 1) -> tuple[str, int]:
    """Return the text with `old` replaced by `new`, and the number of replacements. The file's line
    ends are kept.

    Raises `ToolFailure`.
    """
    if not old:
        raise ToolFailure(
            "old is empty; send the text that new replaces, or the whole file with files.write",
            "invalid",
        )
    for variant in dict.fromkeys(
        (
            old,
            convert_line_ends(old, line_end(text)),
            convert_line_ends(old, "\n"),
            convert_line_ends(old, "\r\n"),
        )
    ):
        if occurrences := text.count(variant):
            if count and occurrences != count:
                lines = [text.count("\n", 0, offset) + 1 for offset in _find_offsets(text, variant)]
                raise ToolFailure(_wrong_count(path, lines, occurrences, count))
            return _replace_exactly(text, variant, new), occurrences
    rows, old_rows = split_rows(text), _trim(old)
    if not any(row.strip() for row in old_rows):
        raise ToolFailure(f"old is only spaces, and not found in {path!r}")
    matches = _match_ignoring_indentation(rows, old_rows)
    if not matches:
        raise ToolFailure(_nearest(path, rows, old_rows))
    if count and len(matches) != count:
        raise ToolFailure(_wrong_count(path, [first + 1 for first in matches], len(matches), count))
    for first in reversed(matches):
        rows[first : first + len(old_rows)] = _reindent(
            rows[first : first + len(old_rows)], old_rows, new, line_end(text)
        )
    return "".join(rows), len(matches)


def _replace_exactly(text: str, old: str, new: str) -> str:
    """Replace every `old`; the lines of `new` get the line end of the line that they replace."""
    default_end = line_end(text)
    parts = text.split(old)
    pieces = [parts[0]]
    offset = len(parts[0])
    for part in parts[1:]:
        pieces += [convert_line_ends(new, _line_end_at(text, offset) or default_end), part]
        offset += len(old) + len(part)
    return "".join(pieces)


def _line_end_at(text: str, offset: int) -> str:
    """Return the end of the line at an offset, '' for a last line without an end."""
    newline = text.find("\n", offset)
    return "" if newline < 0 else "\r\n" if text[newline - 1 : newline] == "\r" else "\n"


def _find_offsets(text: str, old: str) -> list[int]:
    offsets = [text.find(old)]
    while len(offsets) < _PLACES_SHOWN and (offset := text.find(old, offsets[-1] + len(old))) >= 0:
        offsets.append(offset)
    return offsets


def _wrong_count(path: str, line_numbers: Sequence[int], occurrences: int, count: int) -> str:
    lines = ", ".join(map(str, line_numbers[:_PLACES_SHOWN]))
    return (
        f"old text occurs {occurrences} times in {path!r} (lines {lines}), not {_times(count)}: "
        f"send more of the lines around it so that it occurs {_times(count)}, or "
        f"count={occurrences} to replace all"
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _trim(old: str) -> list[str]:
    """Return the lines without their ends, and without the empty ones before and after them."""
    rows = [row.rstrip() for row in old.replace("\r\n", "\n").split("\n")]
    while rows and not rows[0]:
        rows.pop(0)
    while rows and not rows[-1]:
        rows.pop()
    return rows


def _match_ignoring_indentation(rows: Sequence[str], old_rows: Sequence[str]) -> list[int]:
    """Return the indices of the first rows of all matches. A match equals `old_rows` except for
    spaces at line ends and one common change of indentation.
    """
    stripped = [row.strip() for row in rows]
    stripped_old = [row.strip() for row in old_rows]
    matches: list[int] = []
    start = 0
    while start + len(stripped_old) <= len(rows):
        if (
            stripped[start : start + len(stripped_old)] == stripped_old
            and _indentation_change(rows[start : start + len(stripped_old)], old_rows) is not None
        ):
            matches.append(start)
            start += len(stripped_old)
        else:
            start += 1
    return matches


def _indentation(row: str) -> str:
    return row[: len(row) - len(row.lstrip())]


def _indentation_change(rows: Sequence[str], old_rows: Sequence[str]) -> tuple[str, str] | None:
    """Return the common start of the old rows' indentation, and its replacement in the file; None
    if the rows differ in more than that.
    """
    pairs = [
        (_indentation(row.rstrip()), _indentation(old_indentation))
        for row, old_indentation in zip(rows, old_rows, strict=True)
        if old_indentation.strip()
    ]
    in_file, in_old = pairs[0]
    common = 0
    while common < min(len(in_file), len(in_old)) and in_file[-1 - common] == in_old[-1 - common]:
        common += 1
    in_file, in_old = in_file[: len(in_file) - common], in_old[: len(in_old) - common]
    if all(
        indentation.startswith(in_file)
        and old_indentation.startswith(in_old)
        and indentation[len(in_file) :] == old_indentation[len(in_old) :]
        for indentation, old_indentation in pairs
    ):
        return in_old, in_file
    return None


def _reindent(
    rows: Sequence[str], old_rows: Sequence[str], new: str, default_end: str
) -> list[str]:
    """Return the new lines with the indentation and line ends of the lines that they replace.

    default_end: the file's line end.
    """
    change = _indentation_change(rows, old_rows)
    assert change is not None  # noqa: S101 - true for every match
    in_old, in_file = change
    end = line_end(rows[0]) or default_end or "\n"
    new_rows = new.replace("\r\n", "\n").strip("\n").split("\n") if new.strip() else []
    indented = [
        (in_file + row[len(in_old) :] if row.startswith(in_old) else row) if row.strip() else ""
        for row in new_rows
    ]
    last_end = rows[-1][len(rows[-1].rstrip("\r\n")) :]
    return [
        row + (end if index < len(indented) - 1 else last_end) for index, row in enumerate(indented)
    ]


def _nearest(path: str, rows: Sequence[str], old_rows: Sequence[str]) -> str:
    """Return an error that shows the most similar text of the file, for copying."""
    message = f"old text not found in {path!r}; the file has {len(rows)} lines"
    row = _find_most_shared_lines(rows, old_rows)
    row = _find_most_similar_line(rows, old_rows) if row is None else row
    if row is None:
        return f"{message}, and none is like it; read it with files.read and copy the text exactly"
    first_row = max(row, 0)
    last_row = min(first_row + min(max(len(old_rows), 3), _NEAREST_ROWS), len(rows))
    excerpt = "".join(rows[first_row:last_row])[:_NEAREST_CHARS].rstrip()
    lines = f"lines {first_row + 1} to {last_row}"
    return f"{message}. Copy old from the nearest text, {lines}:\n{excerpt}"


def _find_most_shared_lines(rows: Sequence[str], old_rows: Sequence[str]) -> int | None:
    """Return the first row of the window, as long as `old_rows`, that has the most lines in common
    with it, or None.
    """
    old_counts = Counter(row.strip() for row in old_rows if len(row.strip()) > 1)
    stripped = [row.strip() for row in rows]
    size, best = len(old_rows), 0
    best_start: int | None = None
    window_counts: Counter[str] = Counter()
    shared = 0
    for index, row in enumerate(stripped):
        if row in old_counts:
            window_counts[row] += 1
            shared += window_counts[row] <= old_counts[row]
        if index >= size and (removed := stripped[index - size]) in old_counts:
            shared -= window_counts[removed] <= old_counts[removed]
            window_counts[removed] -= 1
        if shared > best:
            best, best_start = shared, index - size + 1
    if best_start is None:
        return None
    first_shared = next(
        index for index in range(max(best_start, 0), len(rows)) if stripped[index] in old_counts
    )
    return first_shared - next(
        index for index, row in enumerate(old_rows) if row.strip() == stripped[first_shared]
    )


def _find_most_similar_line(rows: Sequence[str], old_rows: Sequence[str]) -> int | None:
    """Return the start of the window around the line most similar to the longest old row; None if
    no line is similar enough.
    """
    from difflib import SequenceMatcher  # costs start time

    longest_index, longest = max(enumerate(old_rows), key=lambda item: len(item[1].strip()))
    matcher = SequenceMatcher(None, b=longest.strip()[:_COMPARED_CHARS])
    best = _MIN_SIMILARITY
    best_start: int | None = None
    for index, row in enumerate(rows[:_COMPARED_ROWS]):
        matcher.set_seq1(row.strip()[:_COMPARED_CHARS])
        if (
            matcher.real_quick_ratio() > best
            and matcher.quick_ratio() > best
            and (ratio := matcher.ratio()) > best
        ):
            best, best_start = ratio, index - longest_index
    return best_start
