"""What runs candidates' code on inputs, inside: blocks of Python for the workspace, each of whose value is a list of outcomes.

Given `asked` (path, name, arguments and steps each), `seconds` of computing for each call, and `chars` of each outcome.
"""

from __future__ import annotations

from typing import Final

PYTHON: Final = """
import ast, asyncio, contextlib, importlib, inspect, io, itertools, os, re, signal, sys

class Late(BaseException):
    pass

def late(*_):
    raise Late

def limit(seconds):
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)

def load(path):
    *folder, file = path.split("/")
    at = len(folder)
    while at and os.path.exists("/".join([*folder[:at], "__init__.py"])):
        at -= 1
    sys.path[:0] = ["/".join(folder[:at]) or ".", "."]
    return importlib.import_module(".".join([*folder[at:], file.removesuffix(".py")]).removesuffix(".__init__"))

def spell(value):
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(spell, value))) + "}"
    if hasattr(value, "__next__"):
        return spell(list(itertools.islice(value, 1000)))
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

async def waited(value):
    if hasattr(value, "__anext__"):
        return [item async for item in first(value)]
    return await value

async def first(value):
    for _ in range(1000):
        try:
            yield await value.__anext__()
        except StopAsyncIteration:
            return

def settled(value):
    waits = inspect.isawaitable(value) or hasattr(value, "__anext__")
    return asyncio.run(waited(value)) if waits else value

def steps(made, then):
    if not then:
        yield spell(made)
    for name, given, named in then:
        step = getattr(made, name)
        yield spell(step if given is None else settled(step(*given, **named)))

def outcome(function, arguments, then):
    given, named = ast.literal_eval(arguments)
    said = []
    limit(seconds)
    try:
        for value in steps(settled(function(*given, **named)), ast.literal_eval(then)):
            said.append("returns " + value)
        if repr((given, named)) != arguments:
            said[-1] += " and makes its arguments " + repr((*given, *named.values()))
    except Late:
        said.append("comes to no end")
    except BaseException as error:
        said.append("raises " + type(error).__name__)
    finally:
        limit(0)
    return ", then ".join(said)[:chars]

signal.signal(signal.SIGPROF, late)
signal.signal(signal.SIGALRM, late)
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    modules = {path: load(path) for path in dict.fromkeys(path for path, *_ in asked)}
    outcomes = [outcome(getattr(modules[path], name), *given) for path, name, *given in asked]
outcomes
"""

NODE: Final = r"""
import ast, json, subprocess

SCRIPT = '''
const fs = require("fs"), vm = require("vm"), path = require("path");
const { inspect } = require("util"), { pathToFileURL } = require("url");
const write = fs.writeSync, stop = process.exit.bind(process), later = setTimeout, dump = JSON.stringify, race = Promise.race.bind(Promise);
const { asked, seconds, chars } = JSON.parse(fs.readFileSync(0, "utf8"));
const spell = (value) => inspect(value, { depth: 8, sorted: true, breakLength: Infinity, maxArrayLength: 200, maxStringLength: chars });
async function load(file) {
  try { return require(file); } catch (error) {
    if (!["ERR_REQUIRE_ESM", "ERR_UNKNOWN_FILE_EXTENSION"].includes(error.code) && !(error instanceof SyntaxError)) throw error;
    return import(pathToFileURL(file).href);
  }
}
function find(module, name) {
  for (const place of [module, module && module.default])
    for (const value of [place && place[name], place])
      if (typeof value === "function" && (value === (place && place[name]) || value.name === name)) return value;
  return undefined;
}
async function within(run) {
  globalThis.__call = run;
  const value = vm.runInThisContext("__call()", { timeout: seconds * 10000 });
  const late = new Promise((_, no) => later(() => no({ code: "ERR_SCRIPT_EXECUTION_TIMEOUT" }), seconds * 10000).unref());
  return race([value, late]);
}
async function outcome(call, given, then) {
  const before = spell(given), said = [];
  try {
    const made = await within(() => (then.length ? new call(...given) : call(...given)));
    if (!then.length) said.push("returns " + spell(made));
    for (const [name, args] of then) {
      const value = await within(() => (args ? made[name](...args) : made[name]));
      said.push("returns " + (value === made ? "itself" : spell(value)));
    }
    if (spell(given) !== before) said.push(said.pop() + " and makes its arguments " + spell(given));
  } catch (error) {
    const late = error && error.code === "ERR_SCRIPT_EXECUTION_TIMEOUT";
    said.push(late ? "comes to no end" : "raises " + ((error && error.constructor && error.constructor.name) || "nothing"));
  }
  return said.join(", then ").slice(0, chars);
}
(async () => {
  const modules = {}, found = [];
  for (const [file] of asked) modules[file] = modules[file] || await load(path.resolve(file));
  for (const [file, name, given, then] of asked) {
    const call = find(modules[file], name);
    found.push(call ? await outcome(call, given, then) : "raises ReferenceError");
  }
  write(1, "\\n" + dump(found) + "\\n");
  stop(0);
})().catch(() => stop(1));
'''
calls = [
    [path, name, list(ast.literal_eval(given)[0]), [step[:2] for step in ast.literal_eval(then)]] for path, name, given, then in asked
]
told = {"asked": calls, "seconds": seconds, "chars": chars}
ran = subprocess.run(["node", "-e", SCRIPT], input=json.dumps(told), capture_output=True, text=True, errors="replace")
json.loads(ran.stdout.strip().rpartition("\n")[2]) if not ran.returncode else ran.stderr[-400:]
"""
