"""Escapes by git: the trusted side runs git on its own clone, and never on what a workspace
holds.
"""

from __future__ import annotations

from corpus.attempt import Attempt

_NO = ("invalid", "blocked", "error")
_TOUCH = "touch /tmp/@MARK@ /etc/@MARK@"
_LEFT_OUT = r'"files": \["README.copy"\]'
_OWN_FOLDER = "git's own folder|submodule|absolute|leaves the tree"


def _attempt_after(
    name: str,
    first: str,
    statuses: tuple[str, ...] = ("success",),
    expected_output: str = "",
    tool: str = "git.commit",
) -> Attempt:
    arguments = {"message": "work"} if tool == "git.commit" else {}
    return Attempt(
        name, tool, arguments, statuses, expected_output, first=f"echo more >> README.copy; {first}"
    )


def _argument(
    name: str, tool: str, argument: str, *values: object, expected_output: str = ""
) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(f"{name}-{n}", tool, {argument: value}, _NO, expected_output)
        for n, value in enumerate(values, 1)
    )


_CONFIG = (
    f"[core]\n\tfsmonitor = {_TOUCH}\n\thooksPath = /workspace/hooks\n\tsshCommand = {_TOUCH}\n"
    f"\tpager = {_TOUCH}\n\teditor = {_TOUCH}\n"
    f'\tworktree = /\n[filter "evil"]\n\tclean = {_TOUCH}; cat\n\tsmudge = {_TOUCH}; cat\n'
    f"\tprocess = {_TOUCH}\n[diff]\n\texternal = {_TOUCH}\n"
    f'[diff "evil"]\n\ttextconv = {_TOUCH}; cat\n\tcommand = {_TOUCH}\n[merge "evil"]\n\tdriver = '
    f"{_TOUCH}\n"
    f"[alias]\n\tstatus = !{_TOUCH}\n[include]\n\tpath = @OUTSIDE@\n[gpg]\n\tprogram = {_TOUCH}\n"
    f"[credential]\n\thelper = !{_TOUCH}\n"
    f'[uploadpack]\n\tpackObjectsHook = {_TOUCH}\n[protocol "ext"]\n\tallow = always\n'
)
_WRITE_CONFIG = f"cat > CONFIG <<'END'\n{_CONFIG}END\n"
_HOOK = f"printf '#!/bin/sh\\n{_TOUCH}\\n' > hooks/HOOK; chmod +x hooks/HOOK"
_HOOKS = "mkdir -p hooks; " + "; ".join(
    _HOOK.replace("HOOK", name)
    for name in (
        "pre-commit",
        "post-commit",
        "post-checkout",
        "post-index-change",
        "reference-transaction",
    )
)
_DRIVERS = (
    "printf '* filter=evil diff=evil merge=evil text eol=crlf ident export-subst "
    "working-tree-encoding=UTF-16\\n' > .gitattributes"
)

ATTEMPTS = (
    _attempt_after(
        "folder-with-configuration",
        f"rm .git; mkdir .git; {_WRITE_CONFIG}mv CONFIG .git/config",
        expected_output=_LEFT_OUT,
    ),
    _attempt_after(
        "configuration-of-the-shell",
        f"{_WRITE_CONFIG}mv CONFIG $(git rev-parse --git-dir)/config",
        expected_output=_LEFT_OUT,
    ),
    _attempt_after(
        "hooks-of-the-shell",
        f"{_HOOKS}; mv hooks $(git rev-parse --git-dir)/",
        expected_output=_LEFT_OUT,
    ),
    _attempt_after("folder-in-capitals", "mkdir .GIT; echo x > .GIT/config", _NO, _OWN_FOLDER),
    _attempt_after(
        "folder-with-invisible-letters",
        "mkdir $'.g\\u200cit'; echo x > $'.g\\u200cit/config'",
        _NO,
        _OWN_FOLDER,
    ),
    _attempt_after(
        "folder-with-a-short-name", "mkdir git~1; echo x > git~1/config", _NO, _OWN_FOLDER
    ),
    _attempt_after(
        "folder-in-a-folder",
        "mkdir -p src/.git/hooks; echo x > src/.git/hooks/post-commit",
        expected_output=_LEFT_OUT,
    ),
    _attempt_after(
        "file-that-points-elsewhere",
        "echo gitdir: $(dirname @OUTSIDE@) > .git",
        expected_output=_LEFT_OUT,
    ),
    _attempt_after(
        "link-that-points-elsewhere",
        "rm .git; ln -s $(dirname @OUTSIDE@) .git",
        expected_output=_LEFT_OUT,
    ),
    _attempt_after(
        "alternates",
        "rm .git; mkdir -p .git/objects/info; echo / > .git/objects/info/alternates",
        expected_output=_LEFT_OUT,
    ),
    _attempt_after(
        "a-bare-repository-in-the-tree",
        f"echo ref: refs/heads/x > HEAD; mkdir -p objects refs; {_WRITE_CONFIG}mv CONFIG config; "
        f"{_HOOKS}",
    ),
    _attempt_after("hooks-in-the-tree", _HOOKS),
    _attempt_after("drivers-in-attributes", f"{_DRIVERS}; {_WRITE_CONFIG}mv CONFIG .gitconfig"),
    _attempt_after("drivers-in-attributes-and-a-look", _DRIVERS, tool="git.diff"),
    _attempt_after("drivers-in-attributes-and-a-status", _DRIVERS, tool="git.status"),
    _attempt_after(
        "attributes-of-a-folder",
        "mkdir -p info; echo '* filter=evil' > info/attributes; echo '* diff=evil' > "
        "src/.gitattributes",
        tool="git.diff",
    ),
    _attempt_after(
        "ignore-everything", "printf '*\\n' > .gitignore", ("invalid",), "nothing to commit"
    ),
    _attempt_after(
        "submodule",
        'printf \'[submodule "x"]\\n\\tpath = x\\n\\turl = ext::sh -c touch%% '
        "/tmp/@MARK@\\n\\tupdate = !touch /tmp/@MARK@\\n' > .gitmodules",
        _NO,
        "submodule",
    ),
    _attempt_after("submodule-in-capitals", "echo x > .GitModules", _NO, "submodule"),
    _attempt_after("link-out", "ln -s @OUTSIDE@ link", _NO, "absolute path"),
    _attempt_after("link-up", "ln -s ../outside/canary.txt link", _NO, "leaves the tree"),
    _attempt_after("link-into-git", "ln -s .git/hooks link", _NO, "git's own folder"),
    _attempt_after(
        "link-that-climbs-in-the-middle",
        "mkdir a; ln -s a/../../x link",
        _NO,
        "after its beginning|leaves",
    ),
    _attempt_after("names-like-options", "touch -- '--output=x' '-O' ':(top)x' '@{u}' '--'"),
    _attempt_after(
        "names-like-options-and-a-look",
        "touch -- '--output=x' '-O' ':(top)x' '@{u}' '--'",
        tool="git.diff",
    ),
    _attempt_after("name-with-a-newline", "touch $'a\\nb'", _NO, "control character"),
    _attempt_after("name-with-a-backslash", "touch 'a\\..\\b'", _NO, "backslash"),
    _attempt_after("name-that-is-no-text", "touch $'\\xff\\xfe'", _NO, "UTF-8|surrogate"),
    _attempt_after(
        "device-and-pipe", "mkfifo pipe", _NO, "socket, pipe or device", tool="git.status"
    ),
    _attempt_after(
        "five-thousand-folders",
        "mkdir many; cd many; mkdir $(seq 1 5000)",
        ("success", "error"),
        tool="git.status",
    ),
    _attempt_after(
        "folders-too-deep",
        "for i in $(seq 1 150); do mkdir d; cd d; done; touch f",
        _NO,
        "deeper",
        tool="git.status",
    ),
    _attempt_after(
        "a-large-file", "head -c 30000000 /dev/zero > large", _NO, "bytes", tool="git.commit"
    ),
    _attempt_after(
        "a-folder-that-is-closed", "mkdir -p shut/in; echo x > shut/in/f; chmod 0 shut/in shut"
    ),
    Attempt(
        "message-like-an-option",
        "git.commit",
        {"message": "--amend --author=x --file=@OUTSIDE@"},
        first="echo a > new",
    ),
    Attempt(
        "message-with-nul",
        "git.commit",
        {"message": "a\0b"},
        ("success", *_NO),
        first="echo a > new",
    ),
    Attempt(
        "message-with-a-format",
        "git.commit",
        {"message": "%x00%H{}\n\ntree 000\nparent 000\n"},
        first="echo a > new",
    ),
    *_argument(
        "ref-of-diff",
        "git.diff",
        "ref",
        "--output=/tmp/@MARK@",
        "-O@OUTSIDE@",
        "--no-index",
        "--ext-diff",
        "HEAD --output=/tmp/@MARK@",
        ":/@MARK@",
        "HEAD:../../x",
        "HEAD..@",
        "refs/heads/../../../x",
        "@{-1}",
        "HEAD^{/x}",
        "a\nb",
        "a" * 300,
    ),
    *_argument(
        "ref-of-checkout",
        "git.checkout",
        "ref",
        "--orphan=x",
        "-f",
        "--",
        "../x",
        "refs/moothall/base",
        "0" * 40,
        ".git/HEAD",
    ),
    *_argument(
        "name-of-branch",
        "git.branch",
        "name",
        "-D",
        "--upload-pack=touch",
        "../../x",
        "a..b",
        "x.lock",
        "@{-1}",
        "HEAD",
        "a/.b",
        "a b",
        "refs/heads/\u202ex",
    ),
    *_argument(
        "paths-of-add",
        "git.add",
        "paths",
        ["--pathspec-from-file=@OUTSIDE@"],
        [":(exclude)*"],
        [":/"],
        ["../x"],
        ["/etc/passwd"],
        [".git"],
        [],
    ),
    *_argument("limit-of-log", "git.log", "limit", -1, 0, 10**9, "1 --output=x"),
    *_argument(
        "url-of-clone",
        "git.clone",
        "url",
        "ext::sh -c touch% /tmp/@MARK@",
        "--upload-pack=touch /tmp/@MARK@",
        "file:///etc",
        "ssh://-oProxyCommand=touch /tmp/@MARK@/x",
        "https://x/ --config core.sshCommand=x",
        "http://127.0.0.1:@PORT@/x.git",
        "git://127.0.0.1:@PORT@/x",
        "https://127.0.0.1:@PORT@/x.git",
        "fd::3",
    ),
    *_argument(
        "branch-of-push",
        "git.push",
        "branch",
        "--receive-pack=touch /tmp/@MARK@",
        "+refs/heads/*:refs/heads/*",
        "main",
    ),
    Attempt("pull", "git.pull", {}, _NO),
)
