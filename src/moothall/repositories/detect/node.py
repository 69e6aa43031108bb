"""How a Node project is set up and tested, by npm, pnpm or yarn. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from moothall.domain.repository import SetupStep
from moothall.repositories.detect.builds import Built, node_built
from moothall.repositories.detect.project import FoundProject, Project, join_inside, strings, table

TEXTS = ("package.json", ".nvmrc", ".node-version", ".yarnrc.yml", "pnpm-workspace.yaml")
_LOCKS = {
    "package-lock.json": "npm",
    "npm-shrinkwrap.json": "npm",
    "pnpm-lock.yaml": "pnpm",
    "yarn.lock": "yarn",
}
_MANAGERS = frozenset(_LOCKS.values())
_QUIET = ("--no-audit", "--no-fund", "--loglevel=error")
_ENV = "/env"
# What checks style, types or the network and not behaviour: it would make tests red that are green.
# An option such as `vitest --typecheck` is none.
_LINTS = re.compile(
    r"(?<!--)\b(?:eslint|standard|semistandard|xo|prettier|tslint|biome|jshint|jscs|dtslint|tsd|attw|publint|evalmd|lint|lint-staged|size-limit"
    r"|aud|audit|npx\s+(?!--no|-c)\S+|check-dts|es-check|npmignore|auto-changelog|ls-lint|format:check|typecheck|check-types|arethetypeswrong)\b"
)
_PURE = (
    "tests-only",
    "test:only",
    "test-only",
    "tests:only",
    "test:unit",
    "unit",
    "test:node",
    "test:run",
    "test-unit",
    "mocha",
    "jest",
    "vitest",
)
_NONE = "no test specified"
_STEPS = re.compile(r"\s*&&\s*|\s*;\s*")


def node(project: Project) -> FoundProject | None:
    """Return what is found in a Node project, None where it is none."""
    if "package.json" not in project.files:
        return None
    package = project.json("package.json")
    scripts = {
        name: text for name, text in table(package, "scripts").items() if isinstance(text, str)
    }
    tests = _tests(scripts, around_members=_around_members(project))
    if tests[:2] in {("npm", "test"), ("npm", "run")} and _refuses_npm(package):
        tests = (*tests[:2], "--force", *tests[2:])
    checks = {"tests": tests} if tests else {}
    lint = next(
        (name for name in ("lint", "eslint", "test:lint") if _LINTS.search(scripts.get(name, ""))),
        "",
    )
    if tests and lint:
        checks["lint"] = ("npm", "run", "--ignore-scripts", "--silent", lint)
    manager, version = _manager(project, package)
    lock = next(
        (name for name, whose in _LOCKS.items() if whose == manager and name in project.files), ""
    )
    built = node_built(project, package, tests) or Built()
    return FoundProject(
        steps=(
            *_steps(project, package, manager, version, lock),
            *_corepack(scripts, manager, version, project.folder),
            *built.steps,
        ),
        checks=checks,
        advisory=("lint",) if "lint" in checks else (),
        protected=("/package.json", *built.protected),
        reads=(
            *(
                name
                for name in ("package.json", lock, ".npmrc", ".yarnrc.yml", "pnpm-workspace.yaml")
                if name in project.files
            ),
            *built.reads,
        ),
        builds=built.builds,
        needs={"node": _version(project, package)},
        depends=tuple(_depends(project, package)),
    )


def _version(project: Project, package: Mapping[str, object]) -> str:
    for name in (".nvmrc", ".node-version"):
        if found := re.match(r"\s*v?(\d+(?:\.\d+)*)\s*$", project.texts.get(name, "")):
            return found[1]
    engines = table(package, "engines").get("node")
    return engines if isinstance(engines, str) else ""


def _manager(project: Project, package: Mapping[str, object]) -> tuple[str, str]:
    """Return the name of the package manager and its version, '' where none is said."""
    said = re.match(
        r"(npm|pnpm|yarn)@(\d+(?:\.\d+){0,2}(?:-[\w.]+)?)", str(package.get("packageManager", ""))
    )
    if said:
        return said[1], said[2]
    engine = table(package, "devEngines", "packageManager")
    name, wanted = (
        engine.get("name"),
        re.match(r"[~^]?(\d+(?:\.\d+){0,2})", str(engine.get("version", ""))),
    )
    if name in _MANAGERS:
        return str(name), wanted[1] if wanted else ""
    manager = next((whose for name, whose in _LOCKS.items() if name in project.files), "npm")
    if manager == "npm" and "pnpm-workspace.yaml" in project.files:
        manager = "pnpm"
    if manager == "npm" and ".yarnrc.yml" in project.files:
        manager = "yarn"
    return manager, ""


def _refuses_npm(package: Mapping[str, object]) -> bool:
    """Whether npm refuses to run scripts because the package names another package manager."""
    return str(table(package, "devEngines", "packageManager").get("name", "npm")) != "npm"


def _steps(
    project: Project, package: Mapping[str, object], manager: str, version: str, lock: str
) -> Iterator[SetupStep]:
    folder = project.folder
    # Where the package's own scripts cannot run (hooks of git, browsers to download), its
    # dependencies can still be there.
    plain = SetupStep(("npm", "install", *_QUIET, "--legacy-peer-deps", "--ignore-scripts"), folder)
    if manager == "npm":
        install = SetupStep(("npm", "install", *_QUIET), folder, instead=(plain,))
        yield SetupStep(("npm", "ci", *_QUIET), folder, instead=(install,)) if lock else install
    elif manager == "pnpm":
        yield _global(f"pnpm@{version or _pnpm(project)}", folder)
        install = SetupStep(
            ("pnpm", "install", "--no-frozen-lockfile", *_STORE, "--ignore-scripts"),
            folder,
            instead=(plain,),
        )
        yield SetupStep(
            ("pnpm", "install", "--frozen-lockfile" if lock else "--no-frozen-lockfile", *_STORE),
            folder,
            instead=(install,),
        )
    else:
        yield from _yarn(project, version, plain)
    del package


_STORE = (
    "--config.manage-package-manager-versions=false",
    "--config.dangerously-allow-all-builds=true",
    "--reporter=append-only",
)


def _pnpm(project: Project) -> str:
    """Return a version of pnpm that reads the lock file."""
    format_ = re.search(
        r"^lockfileVersion:\s*'?\"?(\d+)", project.texts.get("pnpm-lock.yaml", ""), re.MULTILINE
    )
    return {"5": "7", "6": "8"}.get(format_[1] if format_ else "", "9")


def _yarn(project: Project, version: str, plain: SetupStep) -> Iterator[SetupStep]:
    folder = project.folder
    release = re.search(
        r"^yarnPath:\s*\"?([\w./-]+)", project.texts.get(".yarnrc.yml", ""), re.MULTILINE
    )
    if release and (own := join_inside("", release[1])) in project.files:
        yarn: tuple[str, ...] = ("node", release[1])
        # Scripts call it by name.
        script = f'#!/bin/sh\nexec node "/workspace/{project.path(str(own))}" "$@"\n'
        write = (
            f"mkdir -p {_ENV}/bin && printf %s {shlex.quote(script)} > {_ENV}/bin/yarn && chmod "
            f"755 {_ENV}/bin/yarn"
        )
        yield SetupStep(("sh", "-c", write), folder)
    elif ".yarnrc.yml" in project.files or (version and not version.startswith("1.")):
        yield _global(f"@yarnpkg/cli-dist@{version or '4'}", folder)
        yarn = ("yarn",)
    else:
        yield _global(f"yarn@{version or '1.22.22'}", folder)
        classic = ("yarn", "install", "--non-interactive", "--silent")
        loose = SetupStep(
            (*classic, "--ignore-engines", "--ignore-scripts"), folder, instead=(plain,)
        )
        yield SetupStep(
            (*classic, *(("--frozen-lockfile",) if "yarn.lock" in project.files else ())),
            folder,
            instead=(loose,),
        )
        return
    # Its own way of linking needs a cache that lies outside the repository; node_modules need
    # nothing.
    berry = (
        "env",
        "YARN_NODE_LINKER=node-modules",
        "YARN_ENABLE_TELEMETRY=0",
        "YARN_IGNORE_PATH=1",
        *yarn,
        "install",
    )
    loose = SetupStep((*berry, "--no-immutable", "--mode=skip-build"), folder, instead=(plain,))
    yield SetupStep(
        (*berry, "--immutable" if "yarn.lock" in project.files else "--no-immutable"),
        folder,
        instead=(loose,),
    )


def _corepack(
    scripts: Mapping[str, str], manager: str, version: str, folder: str
) -> Iterator[SetupStep]:
    """Yield the step that fetches the pinned package manager if scripts call it by corepack."""
    if version and any(re.search(r"\bcorepack\b", script) for script in scripts.values()):
        # Its built-in keys expire, and npm's installations here are not verified either.
        argv = (
            "env",
            "COREPACK_INTEGRITY_KEYS=0",
            "corepack",
            "install",
            "--global",
            f"{manager}@{version}",
        )
        yield SetupStep(argv, folder, optional=True)


def _global(package: str, folder: str) -> SetupStep:
    return SetupStep(("npm", "install", "--global", f"--prefix={_ENV}", *_QUIET, package), folder)


def _around_members(project: Project) -> str:
    """Return what the members of a workspace run before and after their tests."""
    patterns = workspaces(project)
    members = [
        path
        for path in project.texts
        if path.endswith("/package.json") and is_member(patterns, path.rpartition("/")[0])
    ]
    scripts = [table(project.json(path), "scripts") for path in members]
    return " && ".join(
        str(one[name]) for one in scripts for name in ("pretest", "posttest") if name in one
    )


def _tests(scripts: Mapping[str, str], *, around_members: str) -> tuple[str, ...]:
    """Return the command that runs the tests and as little else as can be; () where there is
    none.
    """
    script = scripts.get("test", "")
    if _NONE in script:
        script = ""
    around = [scripts.get(name, "") for name in ("pretest", "posttest")]
    lints = bool(_LINTS.search(" && ".join((script, *around))))
    if script and not lints:
        return ("npm", "test", *(("--ignore-scripts",) if _LINTS.search(around_members) else ()))
    pure = next(
        (name for name in _PURE if scripts.get(name) and not _LINTS.search(scripts[name])), ""
    )
    if pure:
        return ("npm", "run", "--ignore-scripts", pure)
    if not script:
        return ()
    if not _LINTS.search(script):
        return (
            "npm",
            "test",
            "--ignore-scripts",
        )  # of those before and after it at least one lints
    kept = [
        part for part in _STEPS.split(script) if part and not _LINTS.search(_expand(part, scripts))
    ]
    return (
        ("npm", "exec", "--offline", "--call", " && ".join(kept))
        if kept
        else ("npm", "test", "--ignore-scripts")
    )


def _expand(part: str, scripts: Mapping[str, str], depth: int = 3) -> str:
    """Return a part of a script with the text of the script that it runs."""
    name = re.match(
        r"(?:npm|pnpm|yarn)\s+(?:run\s+|run-script\s+)?(?:-s\s+|--silent\s+)?([\w:.-]+)", part
    )
    if not name or not depth or name[1] not in scripts:
        return part
    below = [_expand(one, scripts, depth - 1) for one in _STEPS.split(scripts[name[1]])]
    return f"{part} {'' if any(not _LINTS.search(one) for one in below) else ' '.join(below)}"


def workspaces(project: Project) -> tuple[str, ...]:
    """Return the patterns of the folders that a Node project is made of, from its own folder."""
    said = (
        project.json("package.json").get("workspaces") if "package.json" in project.files else None
    )
    patterns = strings(said) or strings(table(said).get("packages"))
    text = project.texts.get("pnpm-workspace.yaml", "")
    packages = re.search(r"^packages:\s*\n((?:\s*(?:-.*|#.*)?\n?)+)", text, re.MULTILINE)
    listed = (
        re.findall(r"^\s*-\s*['\"]?([^'\"#\n]+?)['\"]?\s*(?:#.*)?$", packages[1], re.MULTILINE)
        if packages
        else []
    )
    return tuple(pattern.removeprefix("./").rstrip("/") for pattern in (*patterns, *listed))


def is_member(patterns: tuple[str, ...], folder: str) -> bool:
    """Whether a folder is one of a workspace's."""
    found = False
    for pattern in patterns:
        if fnmatchcase(folder, pattern.removeprefix("!").replace("/**", "/*")):
            found = not pattern.startswith("!")
    return found


def _depends(project: Project, package: Mapping[str, object]) -> Iterator[str]:
    for kind in ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies"):
        for spec in table(package, kind).values():
            path = re.match(r"(?:file|link|portal):(.+)", spec) if isinstance(spec, str) else None
            found = join_inside(project.folder, path[1]) if path else None
            if found is not None:
                yield found
