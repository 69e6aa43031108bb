"""The catalogue entry of the browser. It acts beyond the workspace: no role has it by default."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from moothall.tools.schemas import Arguments, Output, Path, must_match
from moothall.tools.spec import Caps, Cost, Danger, Example, Requirements, ToolSpec

_PNG = must_match(r".*\.png", "a path that ends with .png")
_NEEDS: Final = {
    "open": ("url",),
    "click": ("selector",),
    "type": ("selector", "text"),
    "wait": ("selector",),
    "text": (),
    "screenshot": (),
}
_MAY: Final = {"text": ("selector",)}


class PageAction(Arguments):
    """One action. `selector` is a CSS selector; the first matching element is used."""

    do: Literal["open", "click", "type", "wait", "text", "screenshot"]
    selector: Annotated[str, Field(max_length=500)] = ""
    text: Annotated[str, Field(max_length=5000)] = ""
    url: Annotated[str, Field(max_length=2000)] = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        needed = _NEEDS[self.do]
        for name in ("selector", "text", "url"):
            is_set = bool(getattr(self, name))
            if name in needed and not is_set:
                raise ValueError(f"{self.do} needs {' and '.join(needed)}")
            if is_set and name not in (*needed, *_MAY.get(self.do, ())):
                raise ValueError(f"{self.do} does not accept {name}")
        return self


class BrowserRun(Arguments):
    """Open `url`, then perform the actions in order: open(url), click(selector), type(selector,
    text; a trailing newline presses Enter), wait(selector), text(selector?) and, once, screenshot,
    which is stored at `path`.
    """

    url: Annotated[str, Field(min_length=8, max_length=2000)]
    actions: Annotated[list[PageAction], Field(max_length=50)] = Field(default_factory=list)
    path: Annotated[Path, _PNG] = "screenshot.png"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(action.do == "screenshot" for action in self.actions) > 1:
            raise ValueError("at most one screenshot may be taken in a call")
        return self


class Browsed(Output):
    """The final location, the result of each action, and the hosts that the page was refused."""

    url: str
    title: str
    results: list[dict[str, object]]
    refused: list[str]


SPECS: Final = (
    ToolSpec(
        name="browser.run",
        summary="open a page in a browser and click, type, read and take a screenshot",
        arguments=BrowserRun,
        output=Browsed,
        danger=Danger.OUTSIDE,
        caps=Caps(120),
        requirements=Requirements(network_access=True, file_system="write"),
        tags=("network", "browser", "files"),
        examples=(
            Example(
                "log in and look",
                {
                    "url": "https://example.org/login",
                    "actions": [
                        {"do": "type", "selector": "#name", "text": "ada\n"},
                        {"do": "wait", "selector": "h1"},
                        {"do": "text", "selector": "h1"},
                    ],
                },
                {
                    "url": "https://example.org/home",
                    "title": "Home",
                    "results": [
                        {"do": "type"},
                        {"do": "wait"},
                        {"do": "text", "text": "Hello Ada", "truncated": False},
                    ],
                    "refused": [],
                },
            ),
        ),
        profiles=("network",),
        paths=("path",),
        writes=("path",),
        cost=Cost.HIGH,
    ),
)
