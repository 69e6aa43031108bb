"""What is defined where in a source text, by tree-sitter's grammars: Python, JavaScript,
TypeScript, Go and Rust.

The grammars are C code that reads what others wrote: this runs in a child of the executor, inside
the sandbox, which shows them read-only at `GRAMMARS`. Besides them it needs the standard library
only.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from importlib import import_module

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tree_sitter import Node, Parser

GRAMMARS = "/opt/moothall-grammars"
PACKAGES = (
    "tree_sitter",
    "tree_sitter_python",
    "tree_sitter_javascript",
    "tree_sitter_typescript",
    "tree_sitter_go",
    "tree_sitter_rust",
)
_PLACES = {
    "python": ("tree_sitter_python", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "go": ("tree_sitter_go", "language"),
    "rust": ("tree_sitter_rust", "language"),
}
ENDINGS = {
    **dict.fromkeys((".py", ".pyi"), "python"),
    **dict.fromkeys((".js", ".jsx", ".mjs", ".cjs"), "javascript"),
    **dict.fromkeys((".ts", ".mts", ".cts"), "typescript"),
    ".tsx": "tsx",
    ".go": "go",
    ".rs": "rust",
}
_SCRIPT = frozenset({"javascript", "typescript", "tsx"})
# Node types that define a name, all in their field `name`; what they hold is within their scope.
_TYPES = frozenset(
    {
        "class_definition",
        "class_declaration",
        "abstract_class_declaration",
        "class",
        "interface_declaration",
    }
) | {
    "enum_declaration",
    "type_alias_declaration",
    "internal_module",
    "module",
    "type_spec",
    "type_alias",
    "struct_item",
    "enum_item",
    "union_item",
    "trait_item",
    "mod_item",
    "type_item",
}
_FUNCTIONS = frozenset(
    {
        "function_definition",
        "function_declaration",
        "generator_function_declaration",
        "method_definition",
    }
) | {
    "method_declaration",
    "function_item",
    "function_signature_item",
    "macro_definition",
}
_VALUES = frozenset(
    {"arrow_function", "function_expression", "generator_function", "class", "function"}
)
_HOLDERS = frozenset(
    {
        "program",
        "block",
        "if_statement",
        "else_clause",
        "elif_clause",
        "try_statement",
        "except_clause",
    }
) | {
    "finally_clause",
    "with_statement",
    "class_body",
    "interface_body",
    "declaration_list",
    "statement_block",
    "export_statement",
    "type_declaration",
    "expression_statement",
    "ambient_declaration",
}


def language_of(path: str) -> str:
    """Return the language that a file's name says, or '' for none of these."""
    name = path.rpartition("/")[2].lower()
    return ENDINGS.get(name[name.rfind(".") :], "") if "." in name else ""


@lru_cache(maxsize=1)
def library() -> Any:
    """Return the package that all grammars are used through; in a sandbox it lies at `GRAMMARS`."""
    try:
        return import_module("tree_sitter")
    except ImportError:
        sys.path.append(GRAMMARS)
        return import_module("tree_sitter")


@lru_cache(maxsize=8)
def parser(language: str) -> Parser:
    """Return the parser of a language."""
    tree_sitter = library()
    module, function = _PLACES[language]
    made: Parser = tree_sitter.Parser(
        tree_sitter.Language(getattr(import_module(module), function)())
    )
    return made


def parse(language: str, data: bytes) -> Node:
    """Return the root of the syntax tree of UTF-8 text. What is wrong in it is in the tree as
    errors.
    """
    return parser(language).parse(data).root_node


class Definition:
    """One named thing. Offsets are bytes: `start` to `end` is all of it with decorators and
    `export`, `inner` to `inner_end` the definition proper. `parts` is its qualified name, `trait`
    the trait that a Rust method implements.
    """

    __slots__ = ("body", "end", "inner", "inner_end", "node", "outer", "parts", "start", "trait")

    def __init__(self, parts: tuple[str, ...], outer: Node, node: Node, trait: str) -> None:
        self.parts, self.trait = parts, trait
        self.outer, self.node = outer, node
        self.start, self.end = outer.start_byte, outer.end_byte
        self.inner, self.inner_end = node.start_byte, node.end_byte
        self.body = _body(node)

    @property
    def line(self) -> int:
        """The line that it begins on, from 1."""
        return self.outer.start_point[0] + 1

    @property
    def last_line(self) -> int:
        """The line that it ends on."""
        return self.outer.end_point[0] + 1

    @property
    def is_type(self) -> bool:
        """Whether it is a class or another thing with members, and no function."""
        return self.node.type in _TYPES or self.node.type == "impl_item"

    @property
    def decorators(self) -> list[str]:
        """Python's decorators, without the @."""
        if self.outer.type != "decorated_definition":
            return []
        return [
            _text(child).removeprefix("@").strip()
            for child in self.outer.children
            if child.type == "decorator"
        ]

    @property
    def is_stub(self) -> bool:
        """Whether it only says another signature of what is defined after it."""
        return any(note.rpartition(".")[2] == "overload" for note in self.decorators)

    def label(self, language: str) -> str:
        """Its name as one of the language would say it."""
        if self.trait:
            return f"<{'::'.join(self.parts[:-1])} as {self.trait}>::{self.parts[-1]}"
        return ("::" if language == "rust" else ".").join(self.parts)

    def signature(self, data: bytes) -> str:
        """Return its beginning up to its body, in one line."""
        until = (
            self.body.start_byte if self.body is not None else min(self.inner_end, self.inner + 200)
        )
        text = " ".join(data[self.inner : until].decode("utf-8", "replace").split())
        return text.removesuffix("=>").rstrip(" {=")


def _body(node: Node) -> Node | None:
    found = node.child_by_field_name("body")
    if found is None and node.type in {"type_spec", "type_alias"}:
        return None
    if found is None:
        value = _value(node)
        return value.child_by_field_name("body") if value is not None else None
    return found


def first_child(node: Node | None) -> Node | None:
    """Return the first named child, where there is one."""
    return node.named_children[0] if node is not None and node.named_children else None


def _text(node: Node | None) -> str:
    return (
        node.text.decode("utf-8", "replace") if node is not None and node.text is not None else ""
    )


def _plain(node: Node | None) -> str:
    """Return a type's own name: without what it is generic in and the modules it lies in."""
    return (
        re.split(r"[<\[(]", _text(node).lstrip("*&(").strip())[0]
        .rpartition("::")[2]
        .rpartition(".")[2]
        .strip()
    )


def _value(node: Node) -> Node | None:
    """Return the function or class that a declaration, assignment or member gives a name to."""
    if node.type in {"lexical_declaration", "variable_declaration"}:
        named = [child for child in node.named_children if child.type == "variable_declarator"]
        found = named[0].child_by_field_name("value") if len(named) == 1 else None
    elif node.type == "expression_statement":
        first = first_child(node)
        found = (
            first.child_by_field_name("right")
            if first is not None and first.type == "assignment_expression"
            else None
        )
    elif node.type in {"pair", "field_definition", "public_field_definition"}:
        found = node.child_by_field_name("value")
    else:
        return None
    return found if found is not None and found.type in _VALUES else None


def _name_assigned(node: Node, value: Node) -> tuple[str, ...]:
    """Return the name that a value is given: `a.prototype.b = ` is a.b, `module.exports.b = ` and
    `exports.b = ` are b.
    """
    if node.type == "expression_statement":
        first = first_child(node)
        left = _text(first.child_by_field_name("left") if first is not None else None)
        parts = [part for part in left.split(".") if part not in {"prototype", "module", "this"}]
        if parts[:1] == ["exports"]:
            parts = parts[1:] or [_text(value.child_by_field_name("name")) or "exports"]
        return tuple(parts) if all(re.fullmatch(r"[\w$#]+", part) for part in parts) else ()
    if node.type in {"lexical_declaration", "variable_declaration"}:
        declarator = next(
            child for child in node.named_children if child.type == "variable_declarator"
        )
        return (_text(declarator.child_by_field_name("name")),)
    for field in ("key", "property", "name"):
        if (found := node.child_by_field_name(field)) is not None:
            return (_text(found).strip("'\""),)
    return ()


def _definition_of(node: Node, language: str) -> tuple[tuple[str, ...], Node] | None:
    """Return (name, the definition proper) where `node` defines something, as it stands or
    wrapped.
    """
    kind = node.type
    if (inner := _unwrap(node, language)) is not None:
        return _definition_of(inner, language)
    parts: tuple[str, ...] = ()
    if kind in _FUNCTIONS or kind in _TYPES:
        name = _text(node.child_by_field_name("name")).strip("'\"")
        held = (_receiver(node),) if kind == "method_declaration" and language == "go" else ()
        parts = (*held, name) if name else ()
    elif kind == "impl_item":
        parts = (_plain(node.child_by_field_name("type")),)
    elif (value := _value(node)) is not None:
        parts = _name_assigned(node, value)
    return (parts, node) if parts else None


def _unwrap(node: Node, language: str) -> Node | None:
    """Return the definition in what stands around it: decorators, `export`, Go's `type`."""
    if node.type == "decorated_definition":
        return node.child_by_field_name("definition")
    if node.type == "export_statement" and language in _SCRIPT:
        return node.child_by_field_name("declaration")
    if (
        node.type == "type_declaration"
        and len(node.named_children) == 1
        and node.named_children[0].type in {"type_spec", "type_alias"}
    ):
        return node.named_children[0]
    return None


def _receiver(node: Node) -> str:
    held = node.child_by_field_name("receiver")
    first = first_child(held)
    return _plain(first.child_by_field_name("type")) if first is not None else ""


def definitions(root: Node, language: str, *, deep: bool = False) -> Iterator[Definition]:
    """Yield what is defined, in the order of the text; Rust's impl blocks too. `deep`: also within
    functions and expressions.
    """
    waiting: list[tuple[Node, tuple[str, ...], str]] = [(root, (), "")]
    while waiting:
        node, scope, trait = waiting.pop()
        found = _definition_of(node, language) if node is not root else None
        inside = node
        if found is not None:
            names, inside = found
            is_impl = inside.type == "impl_item"
            own = trait if inside.type in _FUNCTIONS else ""
            yield Definition(
                (*scope, *names),
                node,
                inside,
                _plain(inside.child_by_field_name("trait")) if is_impl else own,
            )
            scope = (*scope, *names)
            trait = _plain(inside.child_by_field_name("trait")) if is_impl else ""
            if inside.type in _FUNCTIONS and not deep:
                continue
            if not deep and (value := _value(inside)) is not None:
                if value.type != "class":
                    continue
                inside = value
        elif not deep and node is not root and node.type not in _HOLDERS:
            continue
        waiting += [(child, scope, trait) for child in reversed(inside.named_children)]


def first_error(root: Node) -> Node | None:
    """Return the first place where the text is not of the language."""
    if not root.has_error:
        return None
    node = root
    while True:
        if node.is_error or node.is_missing:
            return node
        below = next(
            (child for child in node.children if child.has_error or child.is_missing), None
        )
        if below is None:
            return node
        node = below


def line_start(data: bytes, at: int) -> int:
    """Return where the line of an offset begins."""
    return data.rfind(b"\n", 0, at) + 1
