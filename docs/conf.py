"""Sphinx configuration of the documentation site. `scripts/docs` builds it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "src")]

import docs_reference  # noqa: E402 - found by the path above

from moothall import __version__  # noqa: E402 - as above

project = "Moothall"
copyright = "the Moothall contributors, Apache-2.0"  # noqa: A001 - Sphinx's name
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
]
exclude_patterns = ["pictures/**"]
templates_path = ["_templates"]
nitpicky = False  # types of other libraries have no page here
default_role = "code"
highlight_language = "none"
smartquotes = False  # `--option` in a sentence is two hyphens

myst_enable_extensions = ["attrs_inline", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a generated page may start at a deeper level

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autoclass_content = "both"

html_theme = "furo"
html_title = f"Moothall {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}


ROOT_PAGES = {
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "security": "SECURITY.md",
    "conduct": "CODE_OF_CONDUCT.md",
}
"""Pages that show a file of the root folder, where GitHub expects it."""


def _complete_page(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append the generated part of a reference page, or show a file of the root."""
    if page in docs_reference.PAGES:
        source[0] += "\n" + docs_reference.PAGES[page](ROOT)
    elif page in ROOT_PAGES:
        text = (ROOT / ROOT_PAGES[page]).read_text(encoding="utf-8").replace("](docs/", "](")
        for name, file in ROOT_PAGES.items():
            text = text.replace(f"]({file})", f"]({name}.md)")
        source[0] = text


def _list_fields(
    _app: Sphinx, what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Show the lines `field: meaning` of a class's docstring as a list."""
    in_list = False
    for number, line in enumerate(lines):
        is_field = re.match(r"\w+(, \w+)*: ", line) and (in_list or not lines[number - 1])
        if what == "class" and (is_field or (in_list and line)):
            lines[number] = f"- {line}" if is_field else f"  {line}"
        in_list = what == "class" and bool(is_field or (in_list and line))


def setup(app: Sphinx) -> None:
    """Register what the pages need beyond the extensions."""
    app.add_lexer("mermaid", TextLexer)  # GitHub renders it; the site shows the source
    app.connect("source-read", _complete_page)
    app.connect("autodoc-process-docstring", _list_fields)
