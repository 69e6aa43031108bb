"""A bar chart as SVG for light and dark pages, drawn without a library."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

_WIDTH, _LABEL, _ROW, _TOP = 760, 250, 34, 48

_STYLE = (
    "<style>text{font:14px "
    "system-ui,sans-serif;fill:#444}.t{font-weight:600;font-size:16px}.b{fill:#9aa7b4}.o{fill:#2f7d5b}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.b{fill:#5f6b77}.o{fill:#4cb184}}</style>"
)


def draw_bars(title: str, values: Mapping[str, float], unit: str) -> str:
    """Return a chart with a bar for each value, in the given order."""
    maximum = max(values.values(), default=1.0) or 1.0
    max_length = _WIDTH - _LABEL - 90
    height = _TOP + _ROW * len(values) + 12
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'width="{_WIDTH}" height="{height}" role="img">'
        ),
        f"<title>{escape(title)}</title>",
        _STYLE,
        f'<text class="t" x="8" y="26">{escape(title)}</text>',
    ]
    for row, (name, value) in enumerate(values.items()):
        top = _TOP + row * _ROW
        length = max(value / maximum * max_length, 1.0)
        css_class = "o" if name == "Moothall" else "b"
        lines += [
            f'<text x="{_LABEL - 10}" y="{top + 18}" text-anchor="end">{escape(name)}</text>',
            (
                f'<rect class="{css_class}" x="{_LABEL}" y="{top + 3}" width="{length:.1f}" '
                'height="21" rx="3"/>'
            ),
            f'<text x="{_LABEL + length + 8:.1f}" y="{top + 18}">{value:,.0f}{escape(unit)}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"
