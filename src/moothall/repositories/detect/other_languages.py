"""Detection of projects in other languages than Python: Node with npm, pnpm or yarn, Go modules and
Cargo packages; and of Makefiles. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from moothall.domain.repository import SetupStep
from moothall.repositories.detect.project import (
    Build,
    DetectedProject,
    Project,
    detect_node_build,
    join_inside,
    strings,
    table,
)

# Node projects with npm, pnpm or yarn.


NODE_TEXTS = ("package.json", ".nvmrc", ".node-version", ".yarnrc.yml", "pnpm-workspace.yaml")
_LOCKS = {
    "package-lock.json": "npm",
    "npm-shrinkwrap.json": "npm",
    "pnpm-lock.yaml": "pnpm",
    "yarn.lock": "yarn",
}
_MANAGERS = frozenset(_LOCKS.values())
_QUIET_OPTIONS = ("--no-audit", "--no-fund", "--loglevel=error")
_ENV = "/env"
# Commands that check style, types or the network instead of behaviour. They could make a passing
# test run fail. Options such as `vitest --typecheck` are not meant.
_LINTER = re.compile(
    r"(?<!--)\b(?:eslint|standard|semistandard|xo|prettier|tslint|biome|jshint|jscs|dtslint|tsd|attw|publint|evalmd|lint|lint-staged|size-limit"
    r"|aud|audit|npx\s+(?!--no|-c)\S+|check-dts|es-check|npmignore|auto-changelog|ls-lint|format:check|typecheck|check-types|arethetypeswrong)\b"
)
_TEST_ONLY_SCRIPTS = (
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
_NO_TESTS = "no test specified"
_COMMAND_SEPARATOR = re.compile(r"\s*&&\s*|\s*;\s*")


def node(project: Project) -> DetectedProject | None:
    """Detect a Node project; return None otherwise."""
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
        (name for name in ("lint", "eslint", "test:lint") if _LINTER.search(scripts.get(name, ""))),
        "",
    )
    if tests and lint:
        checks["lint"] = ("npm", "run", "--ignore-scripts", "--silent", lint)
    manager, version = _manager(project, package)
    lock = next(
        (
            name
            for name, lock_manager in _LOCKS.items()
            if lock_manager == manager and name in project.files
        ),
        "",
    )
    build = detect_node_build(project, package, tests) or Build()
    return DetectedProject(
        steps=(
            *_steps(project, package, manager, version, lock),
            *_corepack(scripts, manager, version, project.folder),
            *build.steps,
        ),
        checks=checks,
        advisory=("lint",) if "lint" in checks else (),
        protected=("/package.json", *build.protected),
        reads=(
            *(
                name
                for name in ("package.json", lock, ".npmrc", ".yarnrc.yml", "pnpm-workspace.yaml")
                if name in project.files
            ),
            *build.reads,
        ),
        builds=build.builds,
        needs={"node": _version(project, package)},
        depends=tuple(_depends(project, package)),
    )


def _version(project: Project, package: Mapping[str, object]) -> str:
    for name in (".nvmrc", ".node-version"):
        if match := re.match(r"\s*v?(\d+(?:\.\d+)*)\s*$", project.texts.get(name, "")):
            return match[1]
    engines = table(package, "engines").get("node")
    return engines if isinstance(engines, str) else ""


def _manager(project: Project, package: Mapping[str, object]) -> tuple[str, str]:
    """Return the name of the package manager and its version, '' if it is not specified."""
    match = re.match(
        r"(npm|pnpm|yarn)@(\d+(?:\.\d+){0,2}(?:-[\w.]+)?)", str(package.get("packageManager", ""))
    )
    if match:
        return match[1], match[2]
    engine = table(package, "devEngines", "packageManager")
    name = engine.get("name")
    version = re.match(r"[~^]?(\d+(?:\.\d+){0,2})", str(engine.get("version", "")))
    if name in _MANAGERS:
        return str(name), version[1] if version else ""
    manager = next((manager for name, manager in _LOCKS.items() if name in project.files), "npm")
    if manager == "npm" and "pnpm-workspace.yaml" in project.files:
        manager = "pnpm"
    if manager == "npm" and ".yarnrc.yml" in project.files:
        manager = "yarn"
    return manager, ""


def _refuses_npm(package: Mapping[str, object]) -> bool:
    """Return whether npm refuses to run scripts because the package names another manager."""
    return str(table(package, "devEngines", "packageManager").get("name", "npm")) != "npm"


def _steps(
    project: Project, package: Mapping[str, object], manager: str, version: str, lock: str
) -> Iterator[SetupStep]:
    folder = project.folder
    # If the package's own scripts fail (git hooks, browser downloads), its dependencies can still
    # be installed.
    without_scripts = SetupStep(
        ("npm", "install", *_QUIET_OPTIONS, "--legacy-peer-deps", "--ignore-scripts"), folder
    )
    if manager == "npm":
        install = SetupStep(("npm", "install", *_QUIET_OPTIONS), folder, instead=(without_scripts,))
        yield (
            SetupStep(("npm", "ci", *_QUIET_OPTIONS), folder, instead=(install,))
            if lock
            else install
        )
    elif manager == "pnpm":
        yield _install_globally(f"pnpm@{version or _pnpm(project)}", folder)
        install = SetupStep(
            ("pnpm", "install", "--no-frozen-lockfile", *_PNPM_OPTIONS, "--ignore-scripts"),
            folder,
            instead=(without_scripts,),
        )
        yield SetupStep(
            (
                "pnpm",
                "install",
                "--frozen-lockfile" if lock else "--no-frozen-lockfile",
                *_PNPM_OPTIONS,
            ),
            folder,
            instead=(install,),
        )
    else:
        yield from _yarn(project, version, without_scripts)
    del package


_PNPM_OPTIONS = (
    "--config.manage-package-manager-versions=false",
    "--config.dangerously-allow-all-builds=true",
    "--reporter=append-only",
)


def _pnpm(project: Project) -> str:
    """Return the version of pnpm that reads the lock file."""
    lock_format = re.search(
        r"^lockfileVersion:\s*'?\"?(\d+)", project.texts.get("pnpm-lock.yaml", ""), re.MULTILINE
    )
    return {"5": "7", "6": "8"}.get(lock_format[1] if lock_format else "", "9")


def _yarn(project: Project, version: str, without_scripts: SetupStep) -> Iterator[SetupStep]:
    folder = project.folder
    release = re.search(
        r"^yarnPath:\s*\"?([\w./-]+)", project.texts.get(".yarnrc.yml", ""), re.MULTILINE
    )
    if release and (release_path := join_inside("", release[1])) in project.files:
        yarn: tuple[str, ...] = ("node", release[1])
        # Scripts call yarn by name.
        script = f'#!/bin/sh\nexec node "/workspace/{project.path(str(release_path))}" "$@"\n'
        command = (
            f"mkdir -p {_ENV}/bin && printf %s {shlex.quote(script)} > {_ENV}/bin/yarn && chmod "
            f"755 {_ENV}/bin/yarn"
        )
        yield SetupStep(("sh", "-c", command), folder)
    elif ".yarnrc.yml" in project.files or (version and not version.startswith("1.")):
        yield _install_globally(f"@yarnpkg/cli-dist@{version or '4'}", folder)
        yarn = ("yarn",)
    else:
        yield _install_globally(f"yarn@{version or '1.22.22'}", folder)
        install = ("yarn", "install", "--non-interactive", "--silent")
        lenient = SetupStep(
            (*install, "--ignore-engines", "--ignore-scripts"), folder, instead=(without_scripts,)
        )
        yield SetupStep(
            (*install, *(("--frozen-lockfile",) if "yarn.lock" in project.files else ())),
            folder,
            instead=(lenient,),
        )
        return
    # Yarn's own linker needs a cache outside the repository; node_modules need none.
    berry_install = (
        "env",
        "YARN_NODE_LINKER=node-modules",
        "YARN_ENABLE_TELEMETRY=0",
        "YARN_IGNORE_PATH=1",
        *yarn,
        "install",
    )
    lenient = SetupStep(
        (*berry_install, "--no-immutable", "--mode=skip-build"), folder, instead=(without_scripts,)
    )
    yield SetupStep(
        (*berry_install, "--immutable" if "yarn.lock" in project.files else "--no-immutable"),
        folder,
        instead=(lenient,),
    )


def _corepack(
    scripts: Mapping[str, str], manager: str, version: str, folder: str
) -> Iterator[SetupStep]:
    """Yield the step that fetches the pinned package manager if scripts call it by corepack."""
    if version and any(re.search(r"\bcorepack\b", script) for script in scripts.values()):
        # Corepack's built-in keys expire, and npm's installations are not verified either.
        argv = (
            "env",
            "COREPACK_INTEGRITY_KEYS=0",
            "corepack",
            "install",
            "--global",
            f"{manager}@{version}",
        )
        yield SetupStep(argv, folder, optional=True)


def _install_globally(package: str, folder: str) -> SetupStep:
    return SetupStep(
        ("npm", "install", "--global", f"--prefix={_ENV}", *_QUIET_OPTIONS, package), folder
    )


def _around_members(project: Project) -> str:
    """Return the commands that the members of a workspace run before and after their tests."""
    patterns = workspaces(project)
    members = [
        path
        for path in project.texts
        if path.endswith("/package.json") and is_member(patterns, path.rpartition("/")[0])
    ]
    scripts = [table(project.json(path), "scripts") for path in members]
    return " && ".join(
        str(script[name])
        for script in scripts
        for name in ("pretest", "posttest")
        if name in script
    )


def _tests(scripts: Mapping[str, str], *, around_members: str) -> tuple[str, ...]:
    """Return the command that runs the tests and as little else as possible, () if there are
    none.
    """
    script = scripts.get("test", "")
    if _NO_TESTS in script:
        script = ""
    hooks = [scripts.get(name, "") for name in ("pretest", "posttest")]
    has_linter = bool(_LINTER.search(" && ".join((script, *hooks))))
    if script and not has_linter:
        return ("npm", "test", *(("--ignore-scripts",) if _LINTER.search(around_members) else ()))
    test_only = next(
        (
            name
            for name in _TEST_ONLY_SCRIPTS
            if scripts.get(name) and not _LINTER.search(scripts[name])
        ),
        "",
    )
    if test_only:
        return ("npm", "run", "--ignore-scripts", test_only)
    if not script:
        return ()
    if not _LINTER.search(script):
        return ("npm", "test", "--ignore-scripts")  # a linter runs before or after the tests
    commands = [
        command
        for command in _COMMAND_SEPARATOR.split(script)
        if command and not _LINTER.search(_expand(command, scripts))
    ]
    return (
        ("npm", "exec", "--offline", "--call", " && ".join(commands))
        if commands
        else ("npm", "test", "--ignore-scripts")
    )


def _expand(command: str, scripts: Mapping[str, str], depth: int = 3) -> str:
    """Return a command with the text of the script that it runs."""
    match = re.match(
        r"(?:npm|pnpm|yarn)\s+(?:run\s+|run-script\s+)?(?:-s\s+|--silent\s+)?([\w:.-]+)", command
    )
    if not match or not depth or match[1] not in scripts:
        return command
    commands = [
        _expand(inner_command, scripts, depth - 1)
        for inner_command in _COMMAND_SEPARATOR.split(scripts[match[1]])
    ]
    only_lints = all(_LINTER.search(inner_command) for inner_command in commands)
    return f"{command} {' '.join(commands) if only_lints else ''}"


def workspaces(project: Project) -> tuple[str, ...]:
    """Return the patterns of the folders of a Node workspace, from the folder of its root."""
    declared = (
        project.json("package.json").get("workspaces") if "package.json" in project.files else None
    )
    patterns = strings(declared) or strings(table(declared).get("packages"))
    text = project.texts.get("pnpm-workspace.yaml", "")
    packages = re.search(r"^packages:\s*\n((?:\s*(?:-.*|#.*)?\n?)+)", text, re.MULTILINE)
    listed = (
        re.findall(r"^\s*-\s*['\"]?([^'\"#\n]+?)['\"]?\s*(?:#.*)?$", packages[1], re.MULTILINE)
        if packages
        else []
    )
    return tuple(pattern.removeprefix("./").rstrip("/") for pattern in (*patterns, *listed))


def is_member(patterns: tuple[str, ...], folder: str) -> bool:
    """Return whether a folder is a member of a workspace."""
    matched = False
    for pattern in patterns:
        if fnmatchcase(folder, pattern.removeprefix("!").replace("/**", "/*")):
            matched = not pattern.startswith("!")
    return matched


def _depends(project: Project, package: Mapping[str, object]) -> Iterator[str]:
    for kind in ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies"):
        for spec in table(package, kind).values():
            path = re.match(r"(?:file|link|portal):(.+)", spec) if isinstance(spec, str) else None
            folder = join_inside(project.folder, path[1]) if path else None
            if folder is not None:
                yield folder


# Go modules, Cargo packages and Makefiles.


GO_TEXTS = ("go.mod", "go.work")
CARGO_TEXTS = ("Cargo.toml", "rust-toolchain", "rust-toolchain.toml")
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")  # in make's own order


def go(project: Project) -> DetectedProject | None:
    """Detect a Go module; return None otherwise."""
    if "go.mod" not in project.files:
        return None
    text = project.texts.get("go.mod", "")
    versions = re.findall(r"^(?:go|toolchain)\s+(?:go)?(\d+(?:\.\d+)*)", text, re.MULTILINE)[:1]
    replacement_paths = re.findall(r"=>\s+(\.\.?/\S*)", text)
    steps = (
        []
        if project.any("/vendor/modules.txt")
        else [SetupStep(("go", "mod", "download"), project.folder)]
    )
    # Compiles without running the repository's code. It may fail, because the checks report errors
    # of compilation.
    steps.append(SetupStep(("go", "test", "-exec", "true", "./..."), project.folder, optional=True))
    return DetectedProject(
        steps=tuple(steps),
        checks={"tests": ("go", "test", "./...")} if project.any("*_test.go") else {},
        reads=tuple(
            name for name in ("go.mod", "go.sum", "go.work", "go.work.sum") if name in project.files
        ),
        needs={"go": versions[0] if versions else ""},
        depends=tuple(
            folder
            for path in replacement_paths
            if (folder := join_inside(project.folder, path)) is not None
        ),
    )


def cargo(project: Project, packages: Sequence[str]) -> DetectedProject | None:
    """Detect a Cargo package or workspace; return None otherwise. `packages` are all
    packages of the repository.
    """
    if "Cargo.toml" not in project.files:
        return None
    manifest = project.toml("Cargo.toml")
    workspace = "workspace" in manifest
    tests = ("cargo", "test", *(("--workspace",) if workspace else ()))
    channel = table(project.toml("rust-toolchain.toml"), "toolchain").get("channel")
    text = project.texts.get("rust-toolchain", "").strip()
    if text.startswith("["):
        channel = table(Project("", frozenset(), {"r": text}).toml("r"), "toolchain").get("channel")
    elif text:
        channel = text
    return DetectedProject(
        steps=(
            SetupStep(("cargo", "fetch"), project.folder),
            *_compile_steps(project, manifest, tests, packages),
        ),
        checks={"tests": tests} if project.any("*.rs") else {},
        protected=("Cargo.toml",),
        reads=tuple(name for name in (*CARGO_TEXTS, "Cargo.lock") if name in project.files),
        needs={"rust": channel if isinstance(channel, str) else ""},
        depends=_paths(project),
    )


def _compile_steps(
    project: Project, manifest: Mapping[str, Any], tests: tuple[str, ...], packages: Sequence[str]
) -> tuple[SetupStep, ...]:
    """Return the step that compiles the dependencies of the tests. The packages themselves are
    cleaned, because cargo tells their versions apart only by time.
    """
    if not packages or not (
        "workspace" in manifest or any("dependencies" in key for key in manifest)
    ):
        return ()  # members of a workspace may have dependencies even if its root has none
    clean = shlex.join(
        ["cargo", "clean", "--quiet", *(argument for name in packages for argument in ("-p", name))]
    )
    script = f"{shlex.join([*tests, '--no-run', '--quiet'])}; {clean} || rm -rf target"
    return (SetupStep(("sh", "-c", script), project.folder, optional=True),)


def _paths(project: Project) -> tuple[str, ...]:
    manifest = project.toml("Cargo.toml")
    folders = []
    for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
        for spec in table(manifest, kind).values():
            path = table(spec).get("path")
            folder = join_inside(project.folder, path) if isinstance(path, str) else None
            folders += [folder] if folder is not None else []
    return tuple(folders)


def make(project: Project) -> DetectedProject | None:
    """Detect a Makefile with a target for tests; return None otherwise."""
    name = next((name for name in MAKEFILES if name in project.files), None)
    target = re.search(
        r"^(test|check|tests)\s*:(?!=)", project.texts.get(name, "") if name else "", re.MULTILINE
    )
    if name is None or target is None:
        return None
    return DetectedProject(
        checks={"tests": ("make", target[1])},
        protected=tuple(f"/{makefile}" for makefile in MAKEFILES),
    )
