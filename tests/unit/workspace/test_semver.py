from __future__ import annotations

import pytest

from moothall.workspace.toolchains import satisfies


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=18", (18, 0, 0), (17, 9, 9)),
        ("^18.17 || >=20.1", (18, 20, 0), (19, 5, 0)),
        ("^0.2.3", (0, 2, 9), (0, 3, 0)),
        ("~18.1", (18, 1, 9), (18, 2, 0)),
        ("~18", (18, 9, 0), (19, 0, 0)),
        ("18.x", (18, 7, 1), (19, 0, 0)),
        ("20", (20, 20, 2), (21, 0, 0)),
        (">= 14.0.0 <21", (20, 1, 0), (21, 0, 0)),
        ("14 - 16", (16, 9, 0), (17, 0, 0)),
        (">16 <=20.2", (20, 2, 7), (16, 9, 0)),
        ("v20.1.0", (20, 1, 0), (20, 1, 1)),
    ],
)
def test_version_ranges_are_evaluated(
    text: str, inside: tuple[int, ...], outside: tuple[int, ...]
) -> None:
    assert satisfies(inside, text)
    assert not satisfies(outside, text)


@pytest.mark.parametrize("text", ["", "*", "x", "lts/iron", "latest"])
def test_a_range_without_a_version_accepts_every_version(text: str) -> None:
    assert satisfies((20, 1, 0), text)
