"""`code.*`: commands that run a piece of code, and what they keep of it for the next piece of the
same session.

Nothing that a piece started outlives it, so a session is kept as files in the sandbox's own /tmp:
gone with the workspace, seen by nobody else. Python keeps imports, functions, classes and every
value that can be pickled; the shell its folder, variables and functions, and its folder without a
session, too; Node what was put on `globalThis`. What could not be kept is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moothall.sandbox_runtime import shell

_FOLDER = "/tmp/moothall-sessions"  # noqa: S108 - inside the sandbox

_PYTHON = r"""
import ast, os, pickle, sys, types
session, code = sys.argv[1:3]
sys.argv = [""]
main = sys.modules["__main__"] = types.ModuleType("__main__")
space = main.__dict__
where = os.path.join({folder!r}, "python-" + session)
kept, defined = {{}}, []
if session and os.path.exists(where):
    with open(where, "rb") as file:
        defined, kept = pickle.load(file)
for text in defined:
    try:
        exec(compile(text, "<session>", "exec"), space)
    except Exception as error:
        print(f"[not restored: {{text.splitlines()[0][:80]}}: {{error}}]", file=sys.stderr)
for name, raw in kept.items():
    try:
        space[name] = pickle.loads(raw)
    except Exception as error:
        print(f"[not restored: {{name}}: {{error}}]", file=sys.stderr)
failed = 0
try:
    tree = compile(code, "<code>", "exec", ast.PyCF_ONLY_AST)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), space)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "<code>", "eval"), space)
        if value is not None:
            print(repr(value))
except SystemExit as ended:
    failed = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
except BaseException as error:
    import traceback
    shown = None if isinstance(error, SyntaxError) else error.__traceback__.tb_next
    traceback.print_exception(type(error), error, shown)
    failed = 1
if session:
    try:
        told = [node for node in ast.parse(code).body
                if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    except SyntaxError:
        told = []
    defined += [text for node in told if (text := ast.unparse(node)) not in defined]
    kept, lost = {{}}, []
    for name, value in list(space.items()):
        if name.startswith("__") or isinstance(value, (types.ModuleType, types.FunctionType, type, types.BuiltinFunctionType)):
            continue
        try:
            kept[name] = pickle.dumps(value)
        except Exception:
            lost.append(name)
    os.makedirs({folder!r}, exist_ok=True)
    with open(where + ".new", "wb") as file:
        pickle.dump((defined, kept), file)
    os.replace(where + ".new", where)
    if lost:
        print("[not kept for the session: " + ", ".join(sorted(lost)[:20]) + "]", file=sys.stderr)
sys.stdout.flush()
sys.exit(failed)
"""

# Names of ours begin with moothall_, so that the piece may use any other and finds none of ours in
# its way. All stands on one line, so that bash counts the lines of the piece from 1. Without a
# session only the folder stays, which the executor reads.
_SHELL = "; ".join(
    line.strip()
    for line in r"""
moothall_session=$1; moothall_code=$2; moothall_state={folder}/shell-$1; set --
if [ -n "$moothall_session" ] && [ -f "$moothall_state" ]; then . "$moothall_state" 2>/dev/null
cd "$moothall_at" 2>/dev/null || cd /workspace; fi
moothall_keep() {{ if [ -z "$moothall_session" ]; then builtin pwd -P >| {shell}/folder
return 0; fi
mkdir -p {folder}
{{ declare -p | grep -vE '^declare -[a-zA-Z]*r[a-zA-Z]* |^declare -[^ ]+ (BASH|SHELLOPTS|PPID|UID|EUID|FUNCNAME|_=|moothall_)'
printf 'moothall_at=%q\n' "$PWD"
declare -f | sed '/^moothall_keep ()/,/^}}/d'; }} > "$moothall_state.new" 2>/dev/null && mv "$moothall_state.new" "$moothall_state"; }}
trap 'moothall_keep 2>/dev/null' EXIT
eval -- "$moothall_code"
""".strip().splitlines()
)

_NODE = r"""
const fs = require('fs'), vm = require('vm'), v8 = require('v8'), path = require('path');
const [session, code] = process.argv.slice(1);
const where = path.join({folder!r}, 'node-' + session), before = new Set(Object.getOwnPropertyNames(globalThis));
globalThis.require = require;
if (session && fs.existsSync(where)) {{
  const [values, functions] = v8.deserialize(fs.readFileSync(where));
  for (const [name, text] of Object.entries(functions)) globalThis[name] = vm.runInThisContext('(' + text + ')');
  Object.assign(globalThis, values);
}}
let failed = 0;
try {{
  const value = vm.runInThisContext(code, {{ filename: 'code.js' }});
  if (value !== undefined) console.log(value);
}} catch (error) {{ console.error(error); failed = 1; }}
process.on('exit', () => {{
  if (!session) return;
  const values = {{}}, functions = {{}}, lost = [];
  for (const name of Object.getOwnPropertyNames(globalThis)) {{
    if (before.has(name) || name === 'require') continue;
    const value = globalThis[name];
    if (typeof value === 'function') {{ functions[name] = value.toString(); continue; }}
    try {{ v8.serialize(value); values[name] = value; }} catch {{ lost.push(name); }}
  }}
  fs.mkdirSync({folder!r}, {{ recursive: true }});
  fs.writeFileSync(where + '.new', v8.serialize([values, functions]));
  fs.renameSync(where + '.new', where);
  if (lost.length) console.error('[not kept for the session: ' + lost.slice(0, 20).join(', ') + ']');
}});
process.exitCode = failed;
"""


def command(tool: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command that runs a piece of code. Raises `KeyError` for a tool that is none of
    these.
    """
    session = str(arguments.get("session") or "")
    match tool:
        case "code.python":
            return (
                "python3",
                "-c",
                _PYTHON.format(folder=_FOLDER),
                session,
                str(arguments["code"]),
            )
        case "code.shell":
            script = _SHELL.format(folder=_FOLDER, shell=shell.FOLDER)
            return ("bash", "-c", script, "bash", session, str(arguments["command"]))
        case "code.node":
            return (
                "node",
                "-e",
                _NODE.format(folder=_FOLDER),
                "--",
                session,
                str(arguments["code"]),
            )
    raise KeyError(tool)
