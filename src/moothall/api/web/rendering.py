"""Templates, and safe output of foreign text in them: escaped, without control and direction
characters.
"""

from __future__ import annotations

import json
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from moothall.api.web.charts import brief
from moothall.stories.diffs import read_diff, runs

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action "
        "'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # with no-referrer, browsers send forms without an origin, which the server refuses
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)


def visible(value: Any) -> str:
    """Return text escaped and with invisible characters made visible. Markup from templates is
    unchanged.
    """
    if isinstance(value, Markup):
        return value
    return escape(make_visible(str(value)))


def make_visible(text: str) -> str:
    """Return text with invisible characters made visible, without escaping."""
    return _CONTROL.sub(
        lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", text.replace("\r\n", "\n")
    )


def span(seconds: float) -> str:
    """Return a duration in words."""
    total = max(0, int(seconds))
    minutes, seconds_left = divmod(total, 60)
    hours, minutes_left = divmod(minutes, 60)
    return (
        f"{hours} h {minutes_left:02} min"
        if hours
        else f"{minutes} min {seconds_left:02} s"
        if minutes
        else f"{total} s"
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


_TEMPLATES = Environment(
    loader=PackageLoader("moothall.api.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=visible,
)
_TEMPLATES.filters |= {
    "read_diff": read_diff,
    "runs": runs,
    "shown": _json,
    "span": span,
    "brief": brief,
}


def page(template: str, status: int = 200, **context: Any) -> Response:
    """Render a page."""
    variables = {
        "session": None,
        "refresh": 0,
        "changes": "/changes",
        "growing": "",
        "onward": "",
    } | context
    return Response(
        _TEMPLATES.get_template(template).render(variables), status, _HEADERS, "text/html"
    )


def part(template: str, **context: Any) -> Markup:
    """Render a part of a page, to pass to `page`."""
    return Markup(_TEMPLATES.get_template(template).render(context))  # noqa: S704 - the template escaped it


def asset(name: str, media_type: str) -> Response:
    """Return the stylesheet or the script."""
    return Response(_TEMPLATES.get_template(name).render(), 200, _HEADERS, media_type)


def redirect(path: str) -> Response:
    """Redirect a browser to another page of the server."""
    return Response(status_code=303, headers={**_HEADERS, "Location": path})
