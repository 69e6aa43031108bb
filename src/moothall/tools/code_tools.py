"""The tools that run code and describe the sandbox: their catalogue entries, and the commands that
run a piece of code. No role has `code.*` unless the table of roles grants it.

No process outlives its piece, so a session is stored as files in the sandbox's own /tmp, which is
removed with the workspace and not visible elsewhere. Python stores imports, functions, classes and
all picklable values. The shell stores its working directory, variables and functions; the working
directory is stored without a session, too. Node stores the properties of `globalThis`. Values that
cannot be stored are reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from moothall.sandbox_runtime import shell
from moothall.tools.schemas import Arguments, NoArguments, Output, must_match
from moothall.tools.spec import Caps, Cost, Danger, Example, Rate, Requirements, ToolSpec

# The catalogue entries.


Code = Annotated[str, Field(min_length=1, max_length=100_000)]
Session = Annotated[
    str, Field(max_length=40), must_match(r"[a-z0-9][a-z0-9-]*", "a session's name such as a-1")
]


class RunCode(Arguments):
    """The state of a piece is available to the next piece of the same `session`. Without a session,
    no state is kept.
    """

    code: Code
    session: Session = ""


class RunShell(Arguments):
    """Like `RunCode`, for bash. Without a `session`, only the working directory is kept.
    `timeout_seconds` 0 is the default time limit.
    """

    command: Code
    timeout_seconds: int = Field(0, ge=0, le=86_400)
    session: Session = ""


class CodeRun(Output):
    """The exit code and output of a piece of code."""

    exit_code: int
    output: str


class ShellRun(CodeRun):
    """Like `CodeRun`. `working_directory` is the one of the next command if it is not the root of
    the workspace. `ended_processes` are the background processes that ended with the command.
    """

    working_directory: str | None = None
    ended_processes: list[str] | None = None
    note: str | None = None


class SystemInfo(Output):
    """A description of the sandbox and its limits, in bytes and seconds."""

    system: str
    machine: str
    python: str
    processors: int
    memory_bytes: int
    cpu_seconds: float
    wall_seconds: float
    processes: int


class Processes(Output):
    """The processes that run in the sandbox."""

    processes: list[dict[str, object]]


SHELL = "code.shell"
USUAL_SECONDS = 120.0
_MOST_SECONDS = 600.0
_RUNS = Requirements(os_access=True, file_system="write")


def _code(
    language: str, summary: str, model: type[Arguments], arguments: dict[str, str], printed: str
) -> ToolSpec:
    return ToolSpec(
        name=f"code.{language}",
        summary=summary,
        arguments=model,
        output=CodeRun,
        danger=Danger.EXECUTE,
        caps=Caps(120),
        requirements=_RUNS,
        tags=("code", language),
        examples=(Example(summary, arguments, {"exit_code": 0, "output": printed}),),
        profiles=("code",),
        cost=Cost.HIGH,
    )


def _system(name: str, summary: str, output: type[Output], example: dict[str, object]) -> ToolSpec:
    return ToolSpec(
        name=f"system.{name}",
        summary=summary,
        arguments=NoArguments,
        output=output,
        danger=Danger.READ,
        caps=Caps(20),
        requirements=Requirements(file_system="read"),
        tags=("system", "look"),
        examples=(Example(summary, {}, example),),
        profiles=("code",),
    )


SPECS: Final = (
    _code(
        "python",
        "run Python and print the last expression",
        RunCode,
        {"code": "x = 41\nx + 1", "session": "a"},
        "42\n",
    ),
    _code("node", "run JavaScript with Node", RunCode, {"code": "[1, 2].length"}, "2\n"),
    ToolSpec(
        name=SHELL,
        summary="run a bash command; the working directory is kept, git shows the history, and "
        "there is no network",
        arguments=RunShell,
        output=ShellRun,
        danger=Danger.EXECUTE,
        caps=Caps(_MOST_SECONDS, usual_seconds=USUAL_SECONDS),
        requirements=_RUNS,
        tags=("code", "shell"),
        version="1.1.0",
        examples=(
            Example(
                "the last commits on a file",
                {"command": "git log --oneline -2 -- a.py"},
                {"exit_code": 0, "output": "3f2a9c1 begin\n"},
            ),
        ),
        profiles=("code",),
        cost=Cost.HIGH,
        own_rate=Rate(
            60,
            2000,
            # a model that works in the shell makes several calls per turn, within the limits of
            # its seat
        ),
    ),
    _system(
        "info",
        "what the sandbox is and may use",
        SystemInfo,
        {
            "system": "Linux 6.1",
            "machine": "x86_64",
            "python": "3.11.7",
            "processors": 2,
            "memory_bytes": 1_073_741_824,
            "cpu_seconds": 60.0,
            "wall_seconds": 120.0,
            "processes": 64,
        },
    ),
    _system(
        "processes",
        "what runs in the sandbox now",
        Processes,
        {"processes": [{"pid": 2, "name": "executor"}]},
    ),
)


# The commands that run a piece of code and save the state of its session for the next piece.


_FOLDER = "/tmp/moothall-sessions"  # noqa: S108 - inside the sandbox

_PYTHON = r"""
import ast, os, pickle, sys, types
session, code = sys.argv[1:3]
sys.argv = [""]
main = sys.modules["__main__"] = types.ModuleType("__main__")
namespace = main.__dict__
path = os.path.join({folder!r}, "python-" + session)
values, defined = {{}}, []
if session and os.path.exists(path):
    with open(path, "rb") as file:
        defined, values = pickle.load(file)
for text in defined:
    try:
        exec(compile(text, "<session>", "exec"), namespace)
    except Exception as error:
        print(f"[not restored: {{text.splitlines()[0][:80]}}: {{error}}]", file=sys.stderr)
for name, raw in values.items():
    try:
        namespace[name] = pickle.loads(raw)
    except Exception as error:
        print(f"[not restored: {{name}}: {{error}}]", file=sys.stderr)
failed = 0
try:
    tree = compile(code, "<code>", "exec", ast.PyCF_ONLY_AST)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), namespace)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "<code>", "eval"), namespace)
        if value is not None:
            print(repr(value))
except SystemExit as stop:
    failed = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
except BaseException as error:
    import traceback
    user_traceback = None if isinstance(error, SyntaxError) else error.__traceback__.tb_next
    traceback.print_exception(type(error), error, user_traceback)
    failed = 1
if session:
    try:
        definitions = [node for node in ast.parse(code).body
                if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    except SyntaxError:
        definitions = []
    defined += [text for node in definitions if (text := ast.unparse(node)) not in defined]
    values, unpicklable = {{}}, []
    for name, value in list(namespace.items()):
        if name.startswith("__") or isinstance(value, (types.ModuleType, types.FunctionType, type, types.BuiltinFunctionType)):
            continue
        try:
            values[name] = pickle.dumps(value)
        except Exception:
            unpicklable.append(name)
    os.makedirs({folder!r}, exist_ok=True)
    with open(path + ".new", "wb") as file:
        pickle.dump((defined, values), file)
    os.replace(path + ".new", path)
    if unpicklable:
        print("[not kept for the session: " + ", ".join(sorted(unpicklable)[:20]) + "]", file=sys.stderr)
sys.stdout.flush()
sys.exit(failed)
"""

# Our names begin with moothall_, so that they do not clash with names in the piece. Everything is
# on one line, so that bash counts the lines of the piece from 1. Without a session, only the
# working directory is stored, which the executor reads.
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
    """Return the command that runs a piece of code. Raises `KeyError` for any other tool."""
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
