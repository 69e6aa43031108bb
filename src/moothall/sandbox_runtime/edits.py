"""`files.edit`: search and replace. The text as it is written first, then with other spaces at the
line ends and one other indentation.

Never a guess between two places; what is not found is answered with the nearest text of the file.
Runs in a child of the executor.
"""

from __future__ import annotations

from collections import Counter

from moothall.sandbox_runtime.paths import ToolFailure, clean_for_writing
from moothall.sandbox_runtime.text_encodings import line_end, with_ends
from moothall.sandbox_runtime.texts import TextLimits, read_encoded, rows_of, write_text

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_PLACES_SHOWN = 8
_NEAREST_ROWS = 30
_NEAREST_CHARS = 3000
_COMPARED_ROWS = 3000
_COMPARED_CHARS = 200
_ALIKE = 0.6


def edit(root: int, args: Mapping[str, Any], limits: TextLimits) -> dict[str, Any]:
    """Replace `old`, which must occur exactly `count` times; 0: all of it, wherever it occurs."""
    path = clean_for_writing(args["path"])
    text, encoding = read_encoded(root, path, limits)
    made, replaced = replace(path, text, args["old"], args["new"], args.get("count", 1))
    write_text(root, path, made, limits, encoding=encoding)
    return {"path": path, "replaced": replaced}


def replace(path: str, text: str, old: str, new: str, count: int = 1) -> tuple[str, int]:
    """Return the text with `old` replaced by `new`, and the number of places. The file's line ends
    are kept.

    Raises `ToolFailure`.
    """
    if not old:
        raise ToolFailure(
            "old is empty; send the text that new replaces, or the whole file with files.write",
            "invalid",
        )
    for spelled in dict.fromkeys(
        (old, with_ends(old, line_end(text)), with_ends(old, "\n"), with_ends(old, "\r\n"))
    ):
        if found := text.count(spelled):
            if count and found != count:
                lines = [text.count("\n", 0, place) + 1 for place in _places(text, spelled)]
                raise ToolFailure(_wrong_count(path, lines, found, count))
            return _replace_exactly(text, spelled, new), found
    rows, wanted = rows_of(text), _trim(old)
    if not any(row.strip() for row in wanted):
        raise ToolFailure(f"old is only spaces, and not found in {path!r}")
    spots = _same_but_for_spaces(rows, wanted)
    if not spots:
        raise ToolFailure(_nearest(path, rows, wanted))
    if count and len(spots) != count:
        raise ToolFailure(_wrong_count(path, [at + 1 for at in spots], len(spots), count))
    for at in reversed(spots):
        rows[at : at + len(wanted)] = _fit(rows[at : at + len(wanted)], wanted, new, line_end(text))
    return "".join(rows), len(spots)


def _replace_exactly(text: str, old: str, new: str) -> str:
    """Replace every `old`; the lines of `new` get the line end of the line that they replace."""
    usual = line_end(text)
    parts = text.split(old)
    made = [parts[0]]
    at = len(parts[0])
    for part in parts[1:]:
        made += [with_ends(new, _end_at(text, at) or usual), part]
        at += len(old) + len(part)
    return "".join(made)


def _end_at(text: str, at: int) -> str:
    """Return how the line at a position ends, '' for a last line without an end."""
    newline = text.find("\n", at)
    return "" if newline < 0 else "\r\n" if text[newline - 1 : newline] == "\r" else "\n"


def _places(text: str, old: str) -> list[int]:
    found = [text.find(old)]
    while len(found) < _PLACES_SHOWN and (place := text.find(old, found[-1] + len(old))) >= 0:
        found.append(place)
    return found


def _wrong_count(path: str, at: Sequence[int], found: int, count: int) -> str:
    lines = ", ".join(map(str, at[:_PLACES_SHOWN]))
    return (
        f"old text occurs {found} times in {path!r} (lines {lines}), not {_times(count)}: send "
        f"more of the lines around it so that it occurs {_times(count)}, or count={found} to "
        "replace all"
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


def _same_but_for_spaces(rows: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return where, from 0, whole lines stand that are `wanted` but for the spaces at their ends
    and one shift of all.
    """
    stripped = [row.strip() for row in rows]
    bare = [row.strip() for row in wanted]
    found: list[int] = []
    at = 0
    while at + len(bare) <= len(rows):
        if (
            stripped[at : at + len(bare)] == bare
            and _shift(rows[at : at + len(bare)], wanted) is not None
        ):
            found.append(at)
            at += len(bare)
        else:
            at += 1
    return found


def _lead(row: str) -> str:
    return row[: len(row) - len(row.lstrip())]


def _shift(rows: Sequence[str], wanted: Sequence[str]) -> tuple[str, str] | None:
    """Return (what all wanted lines begin with, what stands in the file instead), or None where
    they differ in more than that.
    """
    pairs = [
        (_lead(row.rstrip()), _lead(want))
        for row, want in zip(rows, wanted, strict=True)
        if want.strip()
    ]
    there, here = pairs[0]
    same = 0
    while same < min(len(there), len(here)) and there[-1 - same] == here[-1 - same]:
        same += 1
    there, here = there[: len(there) - same], here[: len(here) - same]
    if all(
        lead.startswith(there) and want.startswith(here) and lead[len(there) :] == want[len(here) :]
        for lead, want in pairs
    ):
        return here, there
    return None


def _fit(rows: Sequence[str], wanted: Sequence[str], new: str, usual: str) -> list[str]:
    """Return the new lines with the indentation and the line ends of those that they replace.

    usual: the file's line end.
    """
    shift = _shift(rows, wanted)
    assert shift is not None  # noqa: S101 - only such spots were found
    here, there = shift
    end = line_end(rows[0]) or usual or "\n"
    fresh = new.replace("\r\n", "\n").strip("\n").split("\n") if new.strip() else []
    made = [
        (there + row[len(here) :] if row.startswith(here) else row) if row.strip() else ""
        for row in fresh
    ]
    last = rows[-1][len(rows[-1].rstrip("\r\n")) :]
    return [row + (end if at < len(made) - 1 else last) for at, row in enumerate(made)]


def _nearest(path: str, rows: Sequence[str], wanted: Sequence[str]) -> str:
    """Say what of the file is most like what was looked for, to be copied."""
    message = f"old text not found in {path!r}; the file has {len(rows)} lines"
    at = _most_shared(rows, wanted)
    at = _most_alike(rows, wanted) if at is None else at
    if at is None:
        return f"{message}, and none is like it; read it with files.read and copy the text exactly"
    first = max(at, 0)
    last = min(first + min(max(len(wanted), 3), _NEAREST_ROWS), len(rows))
    shown = "".join(rows[first:last])[:_NEAREST_CHARS].rstrip()
    return f"{message}. Copy old from the nearest text, lines {first + 1} to {last}:\n{shown}"


def _most_shared(rows: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Return where that begins, as long as `wanted`, that has the most lines in common with it."""
    bare = Counter(row.strip() for row in wanted if len(row.strip()) > 1)
    stripped = [row.strip() for row in rows]
    size, best = len(wanted), 0
    best_at: int | None = None
    seen: Counter[str] = Counter()
    shared = 0
    for at, row in enumerate(stripped):
        if row in bare:
            seen[row] += 1
            shared += seen[row] <= bare[row]
        if at >= size and (gone := stripped[at - size]) in bare:
            shared -= seen[gone] <= bare[gone]
            seen[gone] -= 1
        if shared > best:
            best, best_at = shared, at - size + 1
    if best_at is None:
        return None
    first = next(at for at in range(max(best_at, 0), len(rows)) if stripped[at] in bare)
    return first - next(at for at, row in enumerate(wanted) if row.strip() == stripped[first])


def _most_alike(rows: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Return the line that is most like the longest of those looked for; the window begins as far
    before it as they do.
    """
    from difflib import SequenceMatcher  # costs start time

    number, longest = max(enumerate(wanted), key=lambda item: len(item[1].strip()))
    matcher = SequenceMatcher(None, b=longest.strip()[:_COMPARED_CHARS])
    best = _ALIKE
    best_at: int | None = None
    for at, row in enumerate(rows[:_COMPARED_ROWS]):
        matcher.set_seq1(row.strip()[:_COMPARED_CHARS])
        if (
            matcher.real_quick_ratio() > best
            and matcher.quick_ratio() > best
            and (ratio := matcher.ratio()) > best
        ):
            best, best_at = ratio, at - number
    return best_at
