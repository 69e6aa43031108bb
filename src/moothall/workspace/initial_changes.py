"""The initial changes of a workspace: a candidate's diff on its base, and, if it is judged, the
base's own tests and configuration.
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
from moothall.repositories.git_objects import Change

_MAX_CONFIGURATION_FILES = 50
"""How many configuration files of test runners are read on a base."""
_CACHE_BYTES = 32_000_000
"""The size of the cache of files that candidates change."""


@dataclass(frozen=True, slots=True)
class _Applied:
    """The changes of a diff, and the test files among them."""

    changes: tuple[Change, ...]
    tests: frozenset[str]

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return 1000 + sum(200 + len(change.content or b"") for change in self.changes)


class InitialChanges:
    """A converter of diffs into changes. The last ones are cached, because each re-check of a
    candidate needs the same.
    """

    def __init__(self) -> None:
        self._diffs: LRUCache[tuple[str, str, str], _Applied] = LRUCache(
            _CACHE_BYTES, getsizeof=lambda applied: applied.size
        )

    async def compute(
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
        """Return the initial changes of a workspace. See `ports.Workspaces.open`."""
        base_files = set(await clone.files(base.sha))
        controlled = await _controlled_files(base, clone, base_files) if judged else frozenset()
        changes: dict[str, Change] = {}
        if patch.strip():
            changes |= {
                change.path: change
                for change in (await self._apply_diff(base, clone, patch)).changes
            }
        if judged:
            changes = await _restore_base_files(base, clone, changes, base_files, controlled)
        if extra.strip():
            applied = await self._apply_diff(base, clone, extra)
            tests = frozenset(
                path
                for path in applied.tests
                if not (judged and pristine_files.controls_tests(path))
            )
            changes |= {change.path: change for change in applied.changes if change.path in tests}
            for change in applied.changes:
                if (
                    change.path.endswith(".rs")
                    and change.path not in tests
                    and change.content
                    and change.mode == patch_rules.FILE
                ):
                    changes |= await _with_inline_tests(base, clone, changes, change)
        await _add_texts(base, clone, changes, files, append)
        return list(changes.values())

    async def _apply_diff(self, base: Base, clone: TrustedClone, diff: str) -> _Applied:
        """Apply a diff in the trusted clone, or return the cached result."""
        key = (base.repository, base.sha, digest(diff))
        if key not in self._diffs:
            patch = await clone.apply(base.sha, diff)
            applied = _Applied(
                tuple(await clone.changes(base.sha, patch.commit_sha)), frozenset(patch.tests)
            )
            with suppress(ValueError):  # larger than the cache
                self._diffs[key] = applied
            return applied
        return self._diffs[key]


async def _restore_base_files(
    base: Base,
    clone: TrustedClone,
    changes: Mapping[str, Change],
    base_files: set[str],
    controlled: frozenset[str],
) -> dict[str, Change]:
    """Return the changes that leave the base's own tests and configuration as they are."""
    restored = {
        path: change
        for path, change in changes.items()
        if pristine_files.is_patchable(path, controlled, base_files, base.profile.protected)
    }
    for path in [
        path for path in restored if path in base_files and pristine_files.needs_base(path)
    ]:
        restored[path] = pristine_files.restore_base_parts(
            restored[path], await clone.read(base.sha, path, 0)
        )
    return restored


async def _controlled_files(
    base: Base, clone: TrustedClone, base_files: set[str]
) -> frozenset[str]:
    """Return the files of a base that control its checks."""
    configuration_paths = [
        path
        for path in sorted(base_files)
        if path == "package.json"
        or patch_rules.matches(pristine_files.REFERRING_CONFIGURATION, path)
    ][:_MAX_CONFIGURATION_FILES]
    blobs = await clone.read_all(base.sha, configuration_paths, 0)
    texts = {
        path: blob.decode(errors="replace")
        for path, blob in zip(configuration_paths, blobs, strict=True)
    }
    package = texts.pop("package.json", "")
    return pristine_files.base_controlled_files(
        base_files, base.profile.protected, base.profile.checks.values(), package, texts
    )


async def _add_texts(
    base: Base,
    clone: TrustedClone,
    changes: dict[str, Change],
    files: Mapping[str, str],
    append: Mapping[str, str],
) -> None:
    """Replace files by texts, and append texts to files."""
    for path, text in files.items():
        change = Change(path, patch_rules.FILE, text.encode(errors="surrogateescape"))
        has_inline_tests = path.endswith(".rs") and not patch_rules.is_test(path)
        changes |= (
            await _with_inline_tests(base, clone, changes, change)
            if has_inline_tests
            else {path: change}
        )
    for path, text in append.items():
        current = changes.get(path) or (
            Change(path, patch_rules.FILE, await clone.read(base.sha, path, 0))
            if path in await clone.files(base.sha)
            else None
        )
        if current is not None and current.content is not None:
            changes[path] = Change(path, current.mode, current.content + text.encode())


async def _with_inline_tests(
    base: Base, clone: TrustedClone, changes: Mapping[str, Change], change: Change
) -> dict[str, Change]:
    """Return a Rust source file in its current state, with the inline tests of the version in
    `change`; {} if there is no such file.
    """
    current = changes.get(change.path)
    is_unchanged = current is None and change.path in await clone.files(base.sha)
    text = (
        await clone.read(base.sha, change.path, 0) if is_unchanged else current and current.content
    )
    if not text:
        return {}
    return {
        change.path: Change(
            change.path,
            change.mode,
            pristine_files.restore_inline_tests(text, change.content or b""),
        )
    }
