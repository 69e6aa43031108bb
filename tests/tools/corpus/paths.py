"""File names that lead out of the workspace, or disguise that they do."""

from __future__ import annotations

from corpus.attempt import Attempt, python

_REFUSED = ("blocked", "invalid", "error")
_OUT = (
    "at most 500|leads out|leaves the workspace|absolute|does not exist|control character|no "
    "path|\\.git|not a|not valid|inside"
)


def _read(name: str, path: str, expected_output: str = _OUT, first: str = "") -> Attempt:
    return Attempt(
        f"read-{name}", "files.read", {"path": path}, _REFUSED, expected_output, first=first
    )


def _write(name: str, path: str, expected_output: str = _OUT, first: str = "") -> Attempt:
    return Attempt(
        f"write-{name}",
        "files.write",
        {"path": path, "content": "escaped"},
        _REFUSED,
        expected_output,
        first=first,
    )


ATTEMPTS = (
    _read("up", "../outside/canary.txt"),
    _read("up-from-below", "src/../../../outside/canary.txt"),
    _read("far-up", "../" * 60 + "etc/passwd"),
    _read("absolute", "@OUTSIDE@"),
    _read("home", "~/.ssh/id_rsa", "absolute"),
    _read("home-of-root", "~root/.bashrc", "absolute"),
    _read("double-slash", "//etc/passwd"),
    _read("file-url", "file:///etc/passwd", "does not exist|absolute"),
    _read("windows-drive", "C:\\Windows\\win.ini"),
    _read("windows-up", "..\\..\\etc\\passwd"),
    _read("nul", "src/app.py\0.txt"),
    _read("newline", "src/app.py\n../../etc/passwd"),
    _read("escape-of-a-terminal", "src/\x1b[2Japp.py"),
    _read("half-a-character", "src/\ud800app.py", "JSON|path|surrogate|string|exist"),
    _read("turned-round", "src/\u202egnp.py", "does not exist"),
    _read("wide-dots", "\uff0e\uff0e/\uff0e\uff0e/etc/passwd", "does not exist"),
    _read("one-dot-leader", "\u2024\u2024/etc/passwd", "does not exist"),
    _read("fraction-slash", "..\u2044..\u2044etc\u2044passwd", "does not exist"),
    _read("coded-dots", "%2e%2e/%2e%2e/etc/passwd", "does not exist"),
    _read("overlong", "a/" * 240 + "../" * 20 + "x"),
    _read("git-folder", ".git/config"),
    _read("git-folder-composed", ".g\u0069\u0307t/config", "does not exist|\\.git"),
    _read("git-folder-dots", ".git . ./config"),
    _write("git-folder-in-capitals", ".GIT/config"),
    _write("git-folder-below", "src/.git/hooks/post-checkout"),
    _write("through-nothing", "none/../../@MARK@"),
    _read("link-absolute", "link", first="ln -s @OUTSIDE@ link"),
    _read("link-up", "link", first="ln -s ../../../../@OUTSIDE@ link"),
    _read(
        "link-of-link",
        "a/x/canary.txt",
        first="mkdir a; ln -s ../b a/x; ln -s /workspace/../outside b",
    ),
    _read("link-to-a-sibling-prefix", "link/secret", first="ln -s ../workspace-of-another link"),
    _read("link-to-proc", "link", first="ln -s /proc/self/environ link"),
    _read("magic-link", "link/cwd", first="ln -s /proc/self link"),
    _read("link-in-a-circle", "a", "circle|out", first="ln -s b a; ln -s a b"),
    _write("through-a-link", "link/@MARK@", first="ln -s /tmp link"),
    _write("through-a-link-file", "link", first="ln -s /tmp/@MARK@ link"),
    _write("to-a-device", "null", "regular|not a|folder|out|file", first="ln -s /dev/null null"),
    _read("a-pipe", "pipe", "regular|not a", first="mkfifo pipe"),
    _write("a-pipe", "pipe", "No such device", first="mkfifo pipe"),
    _read(
        "a-socket",
        "sock",
        "regular|not a|No such device",
        first="python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"",
    ),
    Attempt("list-up", "files.list", {"path": "..", "glob": "**"}, _REFUSED, _OUT),
    Attempt(
        "list-glob-up", "files.list", {"path": ".", "glob": "../**"}, (*_REFUSED, "success"), ""
    ),
    Attempt(
        "list-through-a-link",
        "files.list",
        {"path": "link", "glob": "**"},
        _REFUSED,
        _OUT,
        first="ln -s / link",
    ),
    Attempt(
        "list-all-with-links",
        "files.list",
        {"path": ".", "glob": "**"},
        ("success",),
        "README",
        first="ln -s / link; ln -s . loop",
    ),
    Attempt(
        "search-through-a-link",
        "files.search",
        {"pattern": "canary", "path": "link"},
        _REFUSED,
        _OUT,
        first="ln -s @OUTSIDE@ link",
    ),
    Attempt(
        "search-all-with-links",
        "files.search",
        {"pattern": "canary-of|PATH="},
        ("success",),
        "",
        first="ln -s / link; ln -s /proc proc",
    ),
    Attempt(
        "search-regex-bomb",
        "files.search",
        {"pattern": "(a+)+$"},
        ("timeout", "cpu"),
        "",
        plants={"a.txt": "a" * 60 + "b\n"},
    ),
    Attempt(
        "search-regex-too-large",
        "files.search",
        {"pattern": "(?:a{1000}){1000}{1000}"},
        (*_REFUSED, "success", "memory"),
        "",
    ),
    Attempt(
        "search-a-pipe", "files.search", {"pattern": "x"}, ("success",), "", first="mkfifo pipe"
    ),
    Attempt("delete-up", "files.delete", {"path": "../@MARK@"}, _REFUSED, _OUT),
    Attempt(
        "delete-through-a-link",
        "files.delete",
        {"path": "link/canary.txt"},
        _REFUSED,
        _OUT,
        first="ln -s $(dirname @OUTSIDE@) link",
    ),
    Attempt("delete-the-workspace", "files.delete", {"path": "."}, _REFUSED, "folder|names"),
    Attempt(
        "diff-with-outside",
        "files.diff",
        {"path": "README.md", "other": "@OUTSIDE@"},
        _REFUSED,
        _OUT,
    ),
    Attempt(
        "diff-through-a-link",
        "files.diff",
        {"path": "README.md", "other": "link"},
        _REFUSED,
        _OUT,
        first="ln -s @OUTSIDE@ link",
    ),
    Attempt("info-of-outside", "files.info", {"path": "../outside"}, _REFUSED, _OUT),
    Attempt("make-folder-outside", "files.mkdir", {"path": "../@MARK@"}, _REFUSED, _OUT),
    Attempt(
        "make-folder-through-a-link",
        "files.mkdir",
        {"path": "link/@MARK@"},
        _REFUSED,
        _OUT,
        first="ln -s /tmp link",
    ),
    Attempt(
        "edit-through-a-link",
        "files.edit",
        {"path": "link", "old": "canary", "new": "x"},
        _REFUSED,
        _OUT,
        first="ln -s @OUTSIDE@ link",
    ),
    Attempt(
        "define-through-a-link",
        "files.define",
        {"path": "link.py", "name": "f", "content": "def f(): pass"},
        _REFUSED,
        _OUT,
        first="ln -s @OUTSIDE@ link.py",
    ),
    Attempt(
        "append-through-a-link",
        "files.append",
        {"path": "link", "content": "x"},
        _REFUSED,
        _OUT,
        first="ln -s @OUTSIDE@ link",
    ),
    python(
        "names-that-no-one-can-read",
        "import os\nfor n in (b'\\xff\\xfe', b'a\\nb', 'e\\u0301'.encode(), '\\u00e9'.encode(), "
        "b'-rf', b'--output=x', b' ', b'a' * 255): open(n, 'w').close()\nprint('MADE')",
        "MADE",
    ),
    Attempt(
        "list-names-that-no-one-can-read",
        "files.list",
        {"path": "."},
        ("success",),
        "README",
        first="touch $'\\xff\\xfe' $'a\\nb' -- -rf",
    ),
    Attempt(
        "deep-arguments",
        "files.write",
        {"path": "a", "content": [[[[["x"]]]]]},
        ("invalid",),
        "string",
    ),
    Attempt(
        "a-huge-number",
        "files.read",
        {"path": "README.md", "start": 10**400},
        ("invalid",),
        "start",
    ),
    Attempt(
        "a-tool-of-another-name",
        "files.read\n../../x",
        {"path": "README.md"},
        ("invalid",),
        "there is no tool",
    ),
)
