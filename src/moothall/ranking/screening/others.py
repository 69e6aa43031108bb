"""Code that puts something on what it does not own: modules, classes and names of libraries, which tests find there too. Pure.

`Path.exists = …`, `http.DefaultTransport = …`, `util.isDeepStrictEqual = …`. As with all that reaches for what judges, it may be honest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator

_OWN = frozenset({"self", "cls"})
_TOPS = ("src/", "lib/", "python/")
_GLOBALS = (
    r"fetch|set(?:Timeout|Interval|Immediate)|clear(?:Timeout|Interval|Immediate)|queueMicrotask|structuredClone|parseInt|parseFloat"
    r"|isNaN|isFinite|Object|Function|Array|Promise|Error|String|Number|RegExp|Map|Set|Boolean|Date|Symbol|BigInt|Math|JSON|Reflect|Intl|Buffer|URL"
)
_NAME_OF_ALL = re.compile(rf"(?:^|[;}}]|\)\s*\{{|=>\s*\{{)\s*(?:{_GLOBALS})\s*=(?![=>])(?![^\n]*,\s*$)")
_REQUIRED = re.compile(
    r"\b(?:const|let|var)\s+(?:(?P<name>[\w$]+)|\{(?P<names>[^{}]*)\})\s*=\s*require\(\s*['\"](?!\.)[^'\"]*['\"]\s*\)\s*(?:[;,\n]|$)"
    r"|\bimport\s+(?:\*\s+as\s+)?(?:(?P<whole>[\w$]+)\s*,?\s*)?(?:\{(?P<parts>[^{}]*)\}\s*)?from\s*['\"](?!\.)"
)
_AT_ONCE = r"\brequire\(\s*['\"](?!\.)[^'\"]*['\"]\s*\)(?:\.[\w$]+)+\s*=(?![=>])"
_IMPORTED = re.compile(r"(?m)^\s*(?:import\s+)?(?:(?P<name>[a-z]\w*)\s+)?\"(?P<path>[\w./-]+)\"\s*(?://.*)?$")
_ASSERTING = re.compile(r"testify|gomega|ginkgo|go-cmp|quicktest|gotest|check\.v")
_VERSION = re.compile(r"v\d+")
_TRAIT = re.compile(r"(?ms)^[ \t]*(?:pub(?:\([^)\n]*\))? +)?trait +(?P<name>\w+)[^{;]*\{(?P<body>.*?)^[ \t]*\}")
_ASKED = re.compile(
    r"\bfn +(?:contains(?:_key)?|starts_with|ends_with|is_(?:ok|err|some|none|empty|nan|finite)(?:_and)?|all|any|eq|ne|unwrap\w*|expect\w*|len|abs|iter"
    r"|as_(?:str|bytes|ref|mut|slice|(?:mut_)?ptr|mut_(?:slice|str)|deref(?:_mut)?|chunks|array|ascii|path|os_str|(?:sec|milli|micro|nano)s\w*)"
    r"|to_(?:string\w*|owned|vec|str|(?:upper|lower)case|ascii_\w+|bits|[bln]e(?:_bytes)?|digit|degrees|radians|int_unchecked))\s*[(<]"
)
_STANDARD = r"(?:Self|[A-Z]|String|str|Vec|Option|Result|Box|(?:Hash|BTree)(?:Map|Set)|f32|f64|[iu](?:8|16|32|64|128|size)|bool|char)\b|\["


def roots(files: Collection[str]) -> frozenset[str]:
    """Return the modules and packages of Python that a tree holds where they are looked for."""
    paths = (path.removeprefix(next((top for top in _TOPS if path.startswith(top)), "")) for path in files)
    return frozenset(path.partition("/")[0].removesuffix(".py") for path in paths if path.endswith(".py"))


def puts_on_others(tree: ast.Module, own: Collection[str]) -> Iterator[int]:
    """Yield the lines of Python that put an attribute on what is imported from elsewhere than `own`, or on the type of something."""
    theirs = set(_imported(tree, own))
    if theirs:
        theirs |= {name for name, value in _aliases(tree) if _root(value) in theirs}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=owner, ctx=ast.Store() | ast.Del()) if _is_theirs(owner, theirs):
                yield node.lineno
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]) if _is_theirs(owner, theirs):
                yield node.lineno


def _imported(tree: ast.Module, own: Collection[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                item.asname or item.name.partition(".")[0] for item in node.names if item.name.partition(".")[0] not in own
            )
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] not in own:
            yield from (item.asname or item.name for item in node.names)


def _aliases(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name() | ast.Attribute() as value):
                yield name, value


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_theirs(owner: ast.expr, theirs: Collection[str]) -> bool:
    """Whether it is imported, or the type or the owner of something that is not the code's own object."""
    match owner:
        case ast.Call(func=ast.Name(id="type"), args=[each]) | ast.Attribute(value=each, attr="__class__"):
            return _root(each) not in _OWN
        case ast.Attribute(attr="__self__"):
            return True
    return _root(owner) in theirs


def script_changes(text: str) -> re.Pattern[str]:
    """Return what a line of a script has that changes a module which it requires from elsewhere, or a name that all scripts share."""
    said = f"{_NAME_OF_ALL.pattern}|{_AT_ONCE}"
    if names := "|".join(sorted(map(re.escape, _required(text)))):
        said += (
            rf"|(?<![.\w$])(?:{names})(?:\.[\w$]+|\[[^\]\n]{{1,200}}\])+\s*=(?![=>])|\b(?:const|let|var)\s+[\w$]+\s*=\s*(?:{names})\s*(?:[;,]|$)"
            rf"|\b(?:Object|Reflect)\.(?:assign|set|define\w+|setPrototypeOf)\s*\(\s*(?:{names})(?![\w$])"
        )
    return re.compile(said)


def _required(text: str) -> Iterable[str]:
    found: set[str] = set()
    for match in _REQUIRED.finditer(text):
        found |= {name for name in (match["name"], match["whole"]) if name}
        for part in f"{match['names'] or ''},{match['parts'] or ''}".split(","):
            if words := re.findall(r"[\w$]+", part.partition("=")[0]):
                found.add(words[-1])
    return found


def go_changes(text: str) -> re.Pattern[str]:
    """Return what a line of Go has that gives another value to a variable of the standard library, or of one that tests assert with."""
    names = set()
    for match in _IMPORTED.finditer(text):
        parts = [part for part in match["path"].split("/") if not _VERSION.fullmatch(part)]
        if parts and ("." not in parts[0] or _ASSERTING.search(match["path"])):
            names.add(match["name"] or parts[-1])
    if not names:
        return re.compile(r"(?!)")
    said = rf"(?:{'|'.join(sorted(map(re.escape, names)))})\.(?!Usage\b)[A-Z]\w*"
    return re.compile(rf"(?:^|[;{{,])\s*{said}(?:\.\w+|\[[^\]\n]*\])*(?:\s*,\s*[\w.]+)*\s*=(?!=)|&{said}\b(?!\s*[{{\[])")


def rust_changes(text: str) -> re.Pattern[str]:
    """Return what a line of Rust has that gives a type of the standard library a method which its own one is hidden by: those of a trait
    are found first where it takes the value itself, or what that is a pointer to.
    """
    names = "|".join(re.escape(match["name"]) for match in _TRAIT.finditer(text) if _ASKED.search(match["body"]))
    return re.compile(rf"\bimpl\b[^{{;]*\b(?:{names})\b[^{{;]*\bfor\s+(?:&\s*)*(?:{_STANDARD})" if names else r"(?!)")
