"""The settings. `moothall init`: choose a model server, try it, and write the settings for it.
`moothall config`: the effective settings. `moothall completion`: completion scripts for shells.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from moothall.cli.options import FiniteRange, example, json_option
from moothall.cli.runtime import (
    file_of,
    print_json,
    print_status,
    report_errors,
    result_of,
    settings_of,
)
from moothall.config import LlmSettings, LogSettings, default_file
from moothall.config.file import read_toml
from moothall.errors import ConfigurationError, InvalidRequest
from moothall.processes import write_private
from moothall.telemetry import configure_logs

# `moothall init`: choose a model server, try it, and write the settings for it.


_PROVIDERS = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": ("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    "google": (
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
    ),
    "mistral": ("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "vllm": ("http://127.0.0.1:8000/v1", ""),
    "sglang": ("http://127.0.0.1:30000/v1", ""),
    "ollama": ("http://127.0.0.1:11434/v1", ""),
    "llama.cpp": ("http://127.0.0.1:8080/v1", ""),
    "lmstudio": ("http://127.0.0.1:1234/v1", ""),
}
"""The usual base URL and the environment variable of the API key, by provider."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """The result of a trial: the model's name, and descriptions to print."""

    model: str
    reply: str
    window: str
    price: str
    notes: tuple[str, ...]


@click.command(
    epilog=example(
        "moothall init",
        "moothall init --provider openai --model gpt-6.1-sol",
        "moothall init --url http://127.0.0.1:8000/v1",
    )
)
@click.option(
    "--provider",
    type=click.Choice(list(_PROVIDERS)),
    help="Provider: sets the URL and the environment variable of the key.",
)
@click.option("--url", default="", help="Base URL of an OpenAI-compatible API; it ends with /v1.")
@click.option(
    "--model", default="", help="Name of the model; by default the first one of the server."
)
@click.option(
    "--key-env",
    default="",
    metavar="VARIABLE",
    help="Environment variable with the API key. The key is copied to a file that only "
    "you can read.",
)
@click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    help="File with the API key, to which the settings will refer.",
)
@click.option(
    "--price-in",
    type=FiniteRange(),
    default=0.0,
    help="US dollars per million prompt tokens.",
)
@click.option(
    "--price-out",
    type=FiniteRange(),
    default=0.0,
    help="US dollars per million completion tokens.",
)
@json_option
@click.pass_context
@report_errors
def init(
    context: click.Context,
    *,
    provider: str | None,
    url: str,
    model: str,
    key_env: str,
    key_file: Path | None,
    price_in: float,
    price_out: float,
    as_json: bool,
) -> None:
    """Choose the model that councils use: try it, and write the settings for it.

    In a terminal it asks for what is missing. The settings file is the default one, or that of
    --config; an existing [llm] is not changed.
    """
    configure_logs(LogSettings(level="warning"))
    file: Path = (context.obj or default_file()).resolve()
    _check_file(file)
    usual_variable = _PROVIDERS[provider][1] if provider and not url else ""
    url, key_env = _choose_server(provider, url, key_env)
    key = _read_key(key_env, key_file)
    if usual_variable and not key:
        raise InvalidRequest(
            f"{provider} needs a key: set {usual_variable}, or name the key with --key-env or "
            "--key-file"
        )
    values: dict[str, Any] = {"base_url": url}
    values |= {"model": model} if model else {}
    values |= {"price_in": price_in} if price_in else {}
    values |= {"price_out": price_out} if price_out else {}
    trial = result_of(_try_model(values, key), f"trying {url}")
    values["model"] = trial.model
    if key_file is not None:
        values["api_key_file"] = str(key_file.resolve())
    elif key:
        values["api_key_file"] = str(_write_key(file, key))
    _append_section(file, values)
    if as_json:
        print_json(
            {
                "version": 1,
                "file": str(file),
                "llm": values,
                "reply": trial.reply,
                "window": trial.window,
                "price": trial.price,
                "notes": list(trial.notes),
            }
        )
        return
    click.echo(f"{trial.model} at {url} answers; {trial.reply}; {trial.window}")
    for note in trial.notes:
        click.echo(f"  {note}")
    click.echo(f"  {trial.price}")
    click.echo(f"written: {file}")
    click.echo('next: in a repository, moothall check, then moothall deliberate "Fix the …"')


def _check_file(file: Path) -> None:
    """Raise `ConfigurationError` if the settings already name a model server."""
    if file.is_file() and "llm" in read_toml(file):
        raise ConfigurationError(
            f"{file} already has a section [llm]; change it there, or name another file: "
            "moothall --config FILE init"
        )


def _choose_server(provider: str | None, url: str, key_env: str) -> tuple[str, str]:
    """Return the URL and the variable of the key, and ask for the URL if none is given."""
    if provider is not None:
        usual_url, usual_variable = _PROVIDERS[provider]
        return url or usual_url, key_env or (
            usual_variable if os.environ.get(usual_variable) else ""
        )
    if url:
        return url, key_env
    if not sys.stdin.isatty():
        raise InvalidRequest(
            f"name a server: --url URL, or --provider with one of {', '.join(_PROVIDERS)}"
        )
    print_status(f"Providers: {', '.join(_PROVIDERS)}")
    answer = click.prompt("Provider, or URL of an OpenAI-compatible API", err=True)
    if answer in _PROVIDERS:
        return _choose_server(answer, "", key_env)
    return answer, key_env


def _read_key(key_env: str, key_file: Path | None) -> str:
    """Return the API key; empty if the server needs none."""
    if key_env and key_file:
        raise InvalidRequest("name --key-env or --key-file, not both")
    if key_env:
        key = os.environ.get(key_env, "").strip()
        if not key:
            raise InvalidRequest(f"the environment variable {key_env[:80]} is not set")
        return key
    if key_file is not None:
        try:
            return key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"the key file {key_file} cannot be read") from error
    if sys.stdin.isatty():
        return str(
            click.prompt(
                "API key (empty for none)",
                default="",
                hide_input=True,
                show_default=False,
                err=True,
            )
        ).strip()
    return ""


async def _try_model(values: dict[str, Any], key: str) -> _Trial:
    """Call the server. Raises what the model client raises."""
    from moothall.cli.doctor import describe_reply, price_text, window_text
    from moothall.llm.client import open_model

    llm = LlmSettings.model_validate({**values, "retries": 0, "api_key": key or None})
    async with open_model(llm, str(llm.base_url)) as model:
        notes = await model.examine()
        description = await model.describe()
    return _Trial(
        description.model,
        describe_reply(description.reply),
        window_text(llm, description),
        price_text(llm.model_copy(update={"model": description.model})),
        tuple(notes),
    )


def _write_key(file: Path, key: str) -> Path:
    """Write the key beside the settings, for its owner only, and return the path. Raises
    `ConfigurationError` if another key is there.
    """
    path = file.with_name(f"{file.stem}.api_key")
    if path.exists() and path.read_text(encoding="utf-8").strip() != key:
        raise ConfigurationError(f"{path} holds another key: remove it, or name it with --key-file")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, f"{key}\n")
    return path


def _append_section(file: Path, values: dict[str, Any]) -> None:
    """Append the section to the file, which keeps its other content and its mode. Raises
    `InvalidRequest` if a value cannot be in a TOML file.
    """
    existing_text = file.read_text(encoding="utf-8").rstrip() + "\n\n" if file.is_file() else ""
    # A JSON string is a TOML string but for DEL, and a JSON number a TOML number.
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for name, value in values.items()
    ]
    text = existing_text + "\n".join(["[llm]", *lines, ""])
    try:
        tomllib.loads(text.encode().decode())
    except ValueError as error:
        raise InvalidRequest(f"these settings cannot be written as TOML: {error}") from error
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = file.stat().st_mode if file.is_file() else None
    write_private(file, text)
    if mode is not None:
        file.chmod(mode)


# `moothall config`: the effective settings.


@click.command(epilog=example("moothall config | grep LLM", "moothall --config ci.toml config"))
@json_option
@click.pass_context
@report_errors
def config(context: click.Context, as_json: bool) -> None:  # noqa: FBT001 - a flag of click's
    """Print the effective settings and the file that they come from; secrets are redacted.

    An environment variable (MOOTHALL_LLM__MODEL) overrides the file ([llm] model = …), which
    overrides the default. A secret can be in a file: MOOTHALL_LLM__API_KEY_FILE, or api_key_file.
    """
    settings = settings_of(context)
    values = settings.model_dump(mode="json")
    if as_json:
        click.echo(json.dumps({"version": 1, **values}, indent=2))
        return
    file = file_of(context)
    click.echo(
        f"# {f'read from {file}' if file else f'no file was read; {default_file()} would be'}"
    )
    for line in _lines(values, settings, "MOOTHALL_"):
        click.echo(line)


def _lines(values: dict[str, Any], model: BaseModel, prefix: str) -> list[str]:
    lines = []
    for name, value in values.items():
        section = getattr(model, name)
        if isinstance(section, BaseModel):
            lines += _lines(value, section, f"{prefix}{name.upper()}__")
        else:
            value = json.dumps(value) if isinstance(value, dict) else value  # noqa: PLW2901 - as the environment takes it
            description = type(model).model_fields[name].description
            lines.append(
                f"{prefix}{name.upper()}={'' if value is None else value}"
                + (f"    # {description}" if description else "")
            )
    return lines


# `moothall completion`: completion scripts for shells.


@click.command(
    epilog=example(
        'eval "$(moothall completion bash)"',
        "moothall completion fish > ~/.config/fish/completions/moothall.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
@report_errors
def completion(context: click.Context, *, shell: str) -> None:
    """Print the completion script of SHELL: commands, options, task and repository ids, roles,
    protocols.
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise AssertionError(shell)
    root = context.find_root()
    click.echo(completion_class(root.command, {}, "moothall", "_MOOTHALL_COMPLETE").source())
