"""Steps that people repeat at the page, and checks of its look."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from world import VIEWPORTS, Reader

BRIEF = "As a greeter, I want a function that greets the world, so that I need not type it."
AC = (
    "Given the module, when hello_world() is called, then it returns 'Hello, World!'",
    "Given an empty input, when hello_world() is called, then nothing is raised",
)
PICTURES = os.environ.get("PICTURES_FOLDER", "")
SHOWN = frozenset(
    {
        "answer-wide-light",
        "audit-wide-light",
        "council-narrow-light",
        "council-running-wide-light",
        "council-wide-dark",
        "council-wide-light",
        "demo-board-narrow-light",
        "demo-board-wide-dark",
        "demo-board-wide-light",
        "demo-council-wide-light",
        "demo-insights-wide-dark",
        "demo-insights-wide-light",
        "demo-review-wide-light",
        "edit-story-wide-light",
        "graph-wide-light",
        "health-wide-light",
        "origin-wide-light",
        "plan-wide-light",
        "remark-wide-light",
        "runs-wide-light",
        "story-building-wide-light",
        "story-done-wide-light",
        "story-retry-narrow-dark",
        "story-wide-light",
    }
)
"""The views of which `scripts/test-page --pictures` keeps a picture in docs/pictures."""


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 240) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.2)


async def wait_for_state(user: Reader, state: str, button: str = "") -> None:
    """Wait until a story is in a state, and until its buttons are enabled."""

    async def has_state() -> bool:
        await user.page.reload()
        current = (await user.page.inner_text("strong.state")).lower()
        return current == state and (
            not button or await user.page.get_by_role("button", name=button).first.is_enabled()
        )

    try:
        await until(has_state)
    except TimeoutError:
        raise AssertionError(
            f"the story never reached {state!r} with {button!r}:\n{await user.text()}"
        ) from None


async def write_story(
    user: Reader, title: str, brief: str = BRIEF, criteria: tuple[str, ...] = AC
) -> list[int]:
    """Write a story with the coach beside it; return the score after each added criterion."""
    await user.open("/stories/new")
    await user.page.get_by_label("Title").fill(title)
    await user.page.get_by_label("Brief").fill(brief)
    await user.page.get_by_label("Repository").fill("project")
    points = []
    for count in range(len(criteria) + 1):
        await user.page.get_by_label("Criteria").fill("\n".join(criteria[:count]))
        await user.press("Score")
        points.append(int((await user.page.inner_text("#score")).split()[2]))
    await user.press("Create")
    return points


async def check_appearance(user: Reader, name: str) -> None:
    """Check the current view, wide and narrow, light and dark: axe-core finds nothing and it fits.
    Take screenshots if they are wanted.
    """
    violations = []
    for viewport, (width, height) in VIEWPORTS.items():
        await user.page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            await user.page.emulate_media(color_scheme=scheme)
            violations += [
                f"{name} {viewport} {scheme}: {line}" for line in await user.violations()
            ]
            wide = await user.page.evaluate(
                "document.documentElement.scrollWidth - window.innerWidth"
            )
            if wide > 0:
                violations.append(f"{name} {viewport}: {wide} px wider than the window")
            if PICTURES and f"{name}-{viewport}-{scheme}" in SHOWN:
                await user.page.screenshot(path=Path(PICTURES, f"{name}-{viewport}-{scheme}.png"))
    assert violations == []
