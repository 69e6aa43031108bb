"""The definitions of a source text, found with tree-sitter grammars: Python, JavaScript,
TypeScript, Go and Rust.

The grammars are C code that reads foreign text, so this runs in a child of the executor, inside the
sandbox, which mounts them read-only at `GRAMMARS`. Apart from them it uses only the standard
library.
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
_GRAMMAR_FUNCTIONS = {
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
_SCRIPT_LANGUAGES = frozenset({"javascript", "typescript", "tsx"})
# Node types that define a name, in their field `name`, and a scope for their content.
_TYPE_DEFINITIONS = frozenset(
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
_FUNCTION_DEFINITIONS = frozenset(
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
_VALUE_DEFINITIONS = frozenset(
    {"arrow_function", "function_expression", "generator_function", "class", "function"}
)
_CONTAINER_TYPES = frozenset(
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
    """Return the language by a file's name, '' for an unknown one."""
    name = path.rpartition("/")[2].lower()
    return ENDINGS.get(name[name.rfind(".") :], "") if "." in name else ""


@lru_cache(maxsize=1)
def library() -> Any:
    """Return the package tree_sitter; in a sandbox it is at `GRAMMARS`."""
    try:
        return import_module("tree_sitter")
    except ImportError:
        sys.path.append(GRAMMARS)
        return import_module("tree_sitter")


@lru_cache(maxsize=8)
def parser(language: str) -> Parser:
    """Return the parser of a language."""
    tree_sitter = library()
    module, function = _GRAMMAR_FUNCTIONS[language]
    new_parser: Parser = tree_sitter.Parser(
        tree_sitter.Language(getattr(import_module(module), function)())
    )
    return new_parser


def parse(language: str, data: bytes) -> Node:
    """Return the root of the syntax tree of UTF-8 text. Syntax errors are nodes of the tree."""
    return parser(language).parse(data).root_node


class Definition:
    """A named definition. Offsets are bytes: `start` to `end` includes decorators and `export`,
    `inner` to `inner_end` does not. `parts` is the qualified name, `trait` the trait that a Rust
    method implements.
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
        """The first line, from 1."""
        return self.outer.start_point[0] + 1

    @property
    def last_line(self) -> int:
        """The last line, from 1."""
        return self.outer.end_point[0] + 1

    @property
    def is_type(self) -> bool:
        """Whether it is a class or another definition with members, not a function."""
        return self.node.type in _TYPE_DEFINITIONS or self.node.type == "impl_item"

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
        """Whether it is only an overload of a later definition."""
        return any(note.rpartition(".")[2] == "overload" for note in self.decorators)

    def label(self, language: str) -> str:
        """Return the name in the language's notation."""
        if self.trait:
            return f"<{'::'.join(self.parts[:-1])} as {self.trait}>::{self.parts[-1]}"
        return ("::" if language == "rust" else ".").join(self.parts)

    def signature(self, data: bytes) -> str:
        """Return the definition without its body, in one line."""
        signature_end = (
            self.body.start_byte if self.body is not None else min(self.inner_end, self.inner + 200)
        )
        text = " ".join(data[self.inner : signature_end].decode("utf-8", "replace").split())
        return text.removesuffix("=>").rstrip(" {=")


def _body(node: Node) -> Node | None:
    body = node.child_by_field_name("body")
    if body is None and node.type in {"type_spec", "type_alias"}:
        return None
    if body is None:
        value = _value(node)
        return value.child_by_field_name("body") if value is not None else None
    return body


def first_child(node: Node | None) -> Node | None:
    """Return the first named child, or None."""
    return node.named_children[0] if node is not None and node.named_children else None


def _text(node: Node | None) -> str:
    return (
        node.text.decode("utf-8", "replace") if node is not None and node.text is not None else ""
    )


def _type_name(node: Node | None) -> str:
    """Return a type's own name, without type parameters and modules."""
    return (
        re.split(r"[<\[(]", _text(node).lstrip("*&(").strip())[0]
        .rpartition("::")[2]
        .rpartition(".")[2]
        .strip()
    )


def _value(node: Node) -> Node | None:
    """Return the function or class that a declaration, assignment or member names."""
    if node.type in {"lexical_declaration", "variable_declaration"}:
        declarators = [
            child for child in node.named_children if child.type == "variable_declarator"
        ]
        value = declarators[0].child_by_field_name("value") if len(declarators) == 1 else None
    elif node.type == "expression_statement":
        first_expression = first_child(node)
        value = (
            first_expression.child_by_field_name("right")
            if first_expression is not None and first_expression.type == "assignment_expression"
            else None
        )
    elif node.type in {"pair", "field_definition", "public_field_definition"}:
        value = node.child_by_field_name("value")
    else:
        return None
    return value if value is not None and value.type in _VALUE_DEFINITIONS else None


def _name_assigned(node: Node, value: Node) -> tuple[str, ...]:
    """Return the name assigned to a value: `a.prototype.b = ` is a.b, `module.exports.b = ` and
    `exports.b = ` are b.
    """
    if node.type == "expression_statement":
        first_expression = first_child(node)
        left = _text(
            first_expression.child_by_field_name("left") if first_expression is not None else None
        )
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
        if (name_node := node.child_by_field_name(field)) is not None:
            return (_text(name_node).strip("'\""),)
    return ()


def _definition_of(node: Node, language: str) -> tuple[tuple[str, ...], Node] | None:
    """Return (name, inner definition) if `node` defines something, directly or wrapped."""
    node_type = node.type
    if (inner := _unwrap(node, language)) is not None:
        return _definition_of(inner, language)
    parts: tuple[str, ...] = ()
    if node_type in _FUNCTION_DEFINITIONS or node_type in _TYPE_DEFINITIONS:
        name = _text(node.child_by_field_name("name")).strip("'\"")
        receiver = (
            (_receiver(node),) if node_type == "method_declaration" and language == "go" else ()
        )
        parts = (*receiver, name) if name else ()
    elif node_type == "impl_item":
        parts = (_type_name(node.child_by_field_name("type")),)
    elif (value := _value(node)) is not None:
        parts = _name_assigned(node, value)
    return (parts, node) if parts else None


def _unwrap(node: Node, language: str) -> Node | None:
    """Return the definition inside decorators, `export` or Go's `type`."""
    if node.type == "decorated_definition":
        return node.child_by_field_name("definition")
    if node.type == "export_statement" and language in _SCRIPT_LANGUAGES:
        return node.child_by_field_name("declaration")
    if (
        node.type == "type_declaration"
        and len(node.named_children) == 1
        and node.named_children[0].type in {"type_spec", "type_alias"}
    ):
        return node.named_children[0]
    return None


def _receiver(node: Node) -> str:
    receiver = node.child_by_field_name("receiver")
    first_parameter = first_child(receiver)
    return (
        _type_name(first_parameter.child_by_field_name("type"))
        if first_parameter is not None
        else ""
    )


def definitions(root: Node, language: str, *, deep: bool = False) -> Iterator[Definition]:
    """Yield the definitions in the order of the text, including Rust's impl blocks. `deep`: also
    those within functions and expressions.
    """
    pending: list[tuple[Node, tuple[str, ...], str]] = [(root, (), "")]
    while pending:
        node, scope, trait = pending.pop()
        definition = _definition_of(node, language) if node is not root else None
        inner = node
        if definition is not None:
            names, inner = definition
            is_impl = inner.type == "impl_item"
            method_trait = trait if inner.type in _FUNCTION_DEFINITIONS else ""
            yield Definition(
                (*scope, *names),
                node,
                inner,
                _type_name(inner.child_by_field_name("trait")) if is_impl else method_trait,
            )
            scope = (*scope, *names)
            trait = _type_name(inner.child_by_field_name("trait")) if is_impl else ""
            if inner.type in _FUNCTION_DEFINITIONS and not deep:
                continue
            if not deep and (value := _value(inner)) is not None:
                if value.type != "class":
                    continue
                inner = value
        elif not deep and node is not root and node.type not in _CONTAINER_TYPES:
            continue
        pending += [(child, scope, trait) for child in reversed(inner.named_children)]


def first_error(root: Node) -> Node | None:
    """Return the first syntax error."""
    if not root.has_error:
        return None
    node = root
    while True:
        if node.is_error or node.is_missing:
            return node
        erroneous_child = next(
            (child for child in node.children if child.has_error or child.is_missing), None
        )
        if erroneous_child is None:
            return node
        node = erroneous_child


def line_start(data: bytes, offset: int) -> int:
    """Return the start of the line of an offset."""
    return data.rfind(b"\n", 0, offset) + 1
