"""What the catalogue says of the browser. It acts beyond the workspace: no role has it by
default.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from moothall.tools.arguments import Arguments, Path, must_match
from moothall.tools.outputs import Output
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
    """One thing to do. `selector` is CSS and means the first element that it fits."""

    do: Literal["open", "click", "type", "wait", "text", "screenshot"]
    selector: Annotated[str, Field(max_length=500)] = ""
    text: Annotated[str, Field(max_length=5000)] = ""
    url: Annotated[str, Field(max_length=2000)] = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        needed = _NEEDS[self.do]
        for name in ("selector", "text", "url"):
            given = bool(getattr(self, name))
            if name in needed and not given:
                raise ValueError(f"{self.do} needs {' and '.join(needed)}")
            if given and name not in (*needed, *_MAY.get(self.do, ())):
                raise ValueError(f"{self.do} takes no {name}")
        return self


class BrowserRun(Arguments):
    """Opens `url`, then acts in order: open(url), click(selector), type(selector, text: a line end
    at its end presses Enter), wait(selector), text(selector?) and, once, screenshot, which is
    stored at `path`.
    """

    url: Annotated[str, Field(min_length=8, max_length=2000)]
    actions: Annotated[list[PageAction], Field(max_length=50)] = Field(default_factory=list)
    path: Annotated[Path, _PNG] = "screenshot.png"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(action.do == "screenshot" for action in self.actions) > 1:
            raise ValueError("one screenshot may be taken in a call")
        return self


class Browsed(Output):
    """Where the browser was at the end, what each action gave, and the hosts that the page asked
    for in vain.
    """

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
