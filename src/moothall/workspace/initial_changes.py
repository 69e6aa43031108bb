"""What a workspace begins with: a candidate's diff on its base, and where it is judged, the base's
own tests and configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from cachetools import LRUCache

from moothall.domain.ids import digest
from moothall.domain.repository import Base
from moothall.repositories import patch_rules, pristine_files
from moothall.repositories.clone import TrustedClone
from moothall.repositories.objects import Change

_CONFIGURED = 50  # files of a base that configure runners and are read
_DIFFS_KEPT = 32_000_000  # bytes of files that candidates change


@dataclass(frozen=True, slots=True)
class _Applied:
    """What a diff changes, and which of these files are tests."""

    changes: tuple[Change, ...]
    tests: frozenset[str]

    @property
    def size(self) -> int:
        """Bytes, about."""
        return 1000 + sum(200 + len(change.content or b"") for change in self.changes)


class InitialChanges:
    """Turns diffs into changes, and keeps the last ones: each re-check of a candidate asks for the
    same.
    """

    def __init__(self) -> None:
        self._diffs: LRUCache[tuple[str, str, str], _Applied] = LRUCache(
            _DIFFS_KEPT, getsizeof=lambda made: made.size
        )

    async def of(
        self,
        base: Base,
        clone: TrustedClone,
        patch: str,
        extra: str,
        *,
        judged: bool,
        files: Mapping[str, str],
        append: Mapping[str, str],
    ) -> list[Change]:
        """Return the changes that a workspace begins with."""
        kept: frozenset[str] = frozenset()
        existed = set(await clone.files(base.sha))
        protected = base.profile.protected
        if judged:
            told = [
                path
                for path in sorted(existed)
                if path == "package.json"
                or patch_rules.matches(pristine_files.REFERRING_CONFIGURATION, path)
            ][:_CONFIGURED]
            blobs = await clone.read_all(base.sha, told, 0)
            texts = {
                path: blob.decode(errors="replace") for path, blob in zip(told, blobs, strict=True)
            }
            package = texts.pop("package.json", "")
            kept = pristine_files.base_controlled_files(
                existed, protected, base.profile.checks.values(), package, texts
            )
        wanted: dict[str, Change] = {}
        if patch.strip():
            wanted |= {
                change.path: change for change in (await self._apply(base, clone, patch)).changes
            }
        if judged:
            wanted = {
                path: change
                for path, change in wanted.items()
                if pristine_files.is_patchable(path, kept, existed, protected)
            }
            for path in [
                path for path in wanted if path in existed and pristine_files.needs_base(path)
            ]:
                wanted[path] = pristine_files.restore_base_parts(
                    wanted[path], await clone.read(base.sha, path, 0)
                )
        if extra.strip():
            made = await self._apply(base, clone, extra)
            tests = frozenset(
                path for path in made.tests if not (judged and pristine_files.controls_tests(path))
            )
            wanted |= {change.path: change for change in made.changes if change.path in tests}
            for change in made.changes:
                if (
                    change.path.endswith(".rs")
                    and change.path not in tests
                    and change.content
                    and change.mode == patch_rules.FILE
                ):
                    wanted |= await _with_inline_tests(base, clone, wanted, change)
        await _lay_over(base, clone, wanted, files, append)
        return list(wanted.values())

    async def _apply(self, base: Base, clone: TrustedClone, diff: str) -> _Applied:
        """Apply a diff in the trusted clone. The same one is asked for by each re-check of a
        candidate.
        """
        key = (base.repository, base.sha, digest(diff))
        if key not in self._diffs:
            made = await clone.apply(base.sha, diff)
            found = _Applied(
                tuple(await clone.changes(base.sha, made.commit_sha)), frozenset(made.tests)
            )
            with suppress(ValueError):  # larger than all that is kept
                self._diffs[key] = found
            return found
        return self._diffs[key]


async def _lay_over(
    base: Base,
    clone: TrustedClone,
    wanted: dict[str, Change],
    files: Mapping[str, str],
    append: Mapping[str, str],
) -> None:
    """Put texts in the place of files, and at the end of files."""
    for path, text in files.items():
        change = Change(path, patch_rules.FILE, text.encode(errors="surrogateescape"))
        inline = path.endswith(".rs") and not patch_rules.is_test(path)
        wanted |= (
            await _with_inline_tests(base, clone, wanted, change) if inline else {path: change}
        )
    for path, text in append.items():
        now = wanted.get(path) or (
            Change(path, patch_rules.FILE, await clone.read(base.sha, path, 0))
            if path in await clone.files(base.sha)
            else None
        )
        if now is not None and now.content is not None:
            wanted[path] = Change(path, now.mode, now.content + text.encode())


async def _with_inline_tests(
    base: Base, clone: TrustedClone, wanted: Mapping[str, Change], change: Change
) -> dict[str, Change]:
    """Return a Rust source file as it is so far, with the tests that stand inside the version of
    `change`; {} if there is no such file.
    """
    now = wanted.get(change.path)
    existed = now is None and change.path in await clone.files(base.sha)
    text = await clone.read(base.sha, change.path, 0) if existed else now and now.content
    if not text:
        return {}
    return {
        change.path: Change(
            change.path,
            change.mode,
            pristine_files.restore_inline_tests(text, change.content or b""),
        )
    }
