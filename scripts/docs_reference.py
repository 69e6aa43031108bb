"""Write the reference pages of the documentation site as Markdown: settings, protos, error codes
and JSON documents, each from the source that defines it.
"""

from __future__ import annotations

import ast
import importlib
import re
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from moothall import errors
from moothall.api.protobuf import grpc_code, http_status_of
from moothall.settings import AllSettings

_UNITS = {
    "seconds": "seconds",
    "bytes": "bytes",
    "chars": "characters",
    "tokens": "tokens",
    "usd": "US dollars",
    "days": "days",
    "lines": "lines",
}
_TYPES = {bool: "true or false", int: "number", float: "number", str: "text", Path: "path"}


# ---- settings


def settings_page(_root: Path) -> str:
    """Return every setting by section."""
    lines: list[str] = []
    for path, model, fields in _sections(AllSettings, (), []):
        name = ".".join(path)
        lines.append(f"\n## {f'`{name}`' if path else 'Without a section'}\n")
        if path and model.__doc__:
            lines.append(_sentences(model.__doc__) + "\n")
        for key, field in fields.items():
            lines += _setting((*path, key), field)
    return "\n".join(lines)


def setting_names() -> Iterator[str]:
    """Yield the dotted name of every setting. A map's settings, such as those of `models.NAME`, are
    omitted if they are those of another section, such as `llm`.
    """
    for path, _model, fields in _sections(AllSettings, (), []):
        for name in fields:
            yield ".".join((*path, name))


def _sections(
    model: type[BaseModel], path: tuple[str, ...], listed: list[type[BaseModel]]
) -> Iterator[tuple[tuple[str, ...], type[BaseModel], Mapping[str, FieldInfo]]]:
    """Yield the path, the class and the settings of a section, then of the sections within it,
    except for maps of a class in `listed`.
    """
    fields: dict[str, FieldInfo] = {}
    inner: list[tuple[type[BaseModel], tuple[str, ...]]] = []
    listed.append(model)
    for name, field in model.model_fields.items():
        if section := _model_of(field.annotation):
            inner.append((section, (*path, name)))
            continue
        fields[name] = field
        if item := _item_of(field.annotation):
            inner.append((item, (*path, name, "NAME")))
    yield path, model, fields
    for section, section_path in inner:
        if "NAME" in section_path and any(issubclass(model_type, section) for model_type in listed):
            continue
        yield from _sections(section, section_path, listed)


def _model_of(annotation: Any) -> type[BaseModel] | None:
    return (
        annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    )


def _item_of(annotation: Any) -> type[BaseModel] | None:
    """Return the class of a map's values, if they are sections."""
    values = get_args(annotation)[1:] if get_origin(annotation) is not None else ()
    return next((model for value in values if (model := _model_of(value))), None)


def _setting(path: tuple[str, ...], field: FieldInfo) -> Iterator[str]:
    name = ".".join(path)
    if not field.description:
        raise ValueError(f"the setting {name} has no description; add one to its Field")
    yield f"[`{name}`]{{#{_anchor(name)}}}"
    yield f": {_sentence(field.description)}\\"
    facts = [f"Type: {_type_of(path[-1], field)}", f"default: {_default_of(field)}"]
    if SecretStr in (field.annotation, *get_args(field.annotation)):
        facts.append(f"or in the file that `{name}_file` names")
    if "NAME" not in path:
        facts.append(f"environment: `MOOTHALL_{'__'.join(path).upper()}`")
    yield f"  {'; '.join(facts)}\n"


def _anchor(name: str) -> str:
    return "setting-" + re.sub(r"[^a-z0-9]+", "-", name.lower())


def _type_of(name: str, field: FieldInfo) -> str:
    """Return the kind of a setting with its unit and its bounds."""
    kind = _kind(field.annotation)
    if kind == "number":
        unit = next(
            (unit for suffix, unit in _UNITS.items() if re.search(rf"(^|_){suffix}$", name)), ""
        )
        if name.startswith("price"):
            unit = "US dollars per million tokens"
        kind = unit or kind
    bounds = {
        key: getattr(item, key)
        for item in field.metadata
        for key in ("ge", "gt", "le", "lt")
        if getattr(item, key, None) is not None
    }
    signs = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    limits = " and ".join(f"{signs[key]} {value:,}" for key, value in bounds.items())
    return f"{kind}, {limits}" if limits else kind


def _kind(annotation: Any) -> str:  # noqa: PLR0911 - one line a kind
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _TYPES:
        return _TYPES[annotation]
    if annotation is SecretStr:
        return "secret text"
    if origin is Literal:
        return ", ".join(f"`{value}`" if value else "empty" for value in arguments)
    if origin in {Union, types.UnionType}:
        return " or ".join(_kind(each) for each in arguments if each is not type(None))
    if origin is tuple:
        return f"list of {_kind(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"map of names to {_kind(arguments[1])}"
    return "section" if _model_of(annotation) else "text"


def _default_of(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "none, required"
    if value is None or value == "" or value in ((), {}):
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    return f"`{str(value).replace(str(Path.home()), '~')}`"


def _sentence(text: str) -> str:
    text = _sentences(text)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _sentences(text: str) -> str:
    """Join the lines of a comment or docstring, and escape special characters of Markdown."""
    sentence = " ".join(text.split())
    sentence = (
        sentence[0].upper() + sentence[1:] if re.match(r"[a-z]+[ ,:]", sentence) else sentence
    )
    if "`" not in sentence:
        sentence = re.sub(r"([<\[\]*_$])", r"\\\1", sentence)
    return re.sub(r"\bdocs/(\w+)\.md", r"[\1](../\1.md)", sentence)


# ---- protos


def protos_page(root: Path) -> str:
    """Return the services and messages of all protos with their comments."""
    lines: list[str] = []
    for file in _descriptors(root / "protos").file:
        if not file.name.startswith("google/"):
            lines += _proto(file)
    return "\n".join(lines)


def _descriptors(folder: Path) -> descriptor_pb2.FileDescriptorSet:
    google = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "all.binpb"
        files = sorted(map(str, folder.rglob("*.proto")))
        if protoc.main(
            [
                "protoc",
                f"-I{folder}",
                f"-I{google}",
                f"--descriptor_set_out={out}",
                "--include_source_info",
                *files,
            ]
        ):
            raise ValueError("protoc cannot read protos/; its message is above")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _proto(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    comments = {
        tuple(place.path): (place.leading_comments or place.trailing_comments).strip()
        for place in file.source_code_info.location
    }
    yield f"\n## `{file.package}`\n"
    yield f"`protos/{file.name}`. {_comment(comments, (2,))}\n"
    for number, service in enumerate(file.service):
        yield f"\n### Service `{service.name}`\n"
        yield f"{_comment(comments, (6, number))}\n"
        for index, method in enumerate(service.method):
            request = ("stream " if method.client_streaming else "") + _short(method.input_type)
            answer = ("stream " if method.server_streaming else "") + _short(method.output_type)
            yield f"`{method.name}({request}) → {answer}`"
            yield f": {_comment(comments, (6, number, 2, index))}\n"
    for number, message in enumerate(file.message_type):
        yield from _message(message, comments, (4, number), "")
    for number, enum in enumerate(file.enum_type):
        yield from _enum(enum, comments, (5, number), "")


Comments = Mapping[tuple[int, ...], str]


def _message(
    message: descriptor_pb2.DescriptorProto,
    comments: Comments,
    path: tuple[int, ...],
    outer: str,
) -> Iterator[str]:
    if message.options.map_entry:
        return
    name = f"{outer}{message.name}"
    yield f"\n### Message `{name}`\n"
    yield f"{_comment(comments, path)}\n"
    entries = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
    for index, field in enumerate(message.field):
        kind = f"{_field_type(field, entries)}, {field.number}"
        yield _item(f"`{field.name}` ({kind})", _comment(comments, (*path, 2, index)))
    for index, nested in enumerate(message.nested_type):
        yield from _message(nested, comments, (*path, 3, index), f"{name}.")
    for index, enum in enumerate(message.enum_type):
        yield from _enum(enum, comments, (*path, 4, index), f"{name}.")


def _enum(
    enum: descriptor_pb2.EnumDescriptorProto,
    comments: Comments,
    path: tuple[int, ...],
    outer: str,
) -> Iterator[str]:
    yield f"\n### Enum `{outer}{enum.name}`\n"
    yield f"{_comment(comments, path)}\n"
    for index, value in enumerate(enum.value):
        yield _item(f"`{value.name}` ({value.number})", _comment(comments, (*path, 2, index)))


def _item(name: str, comment: str) -> str:
    return f"- {name}: {comment}" if comment else f"- {name}"


def _field_type(
    field: descriptor_pb2.FieldDescriptorProto,
    entries: Mapping[str, descriptor_pb2.DescriptorProto],
) -> str:
    kinds = descriptor_pb2.FieldDescriptorProto.Type
    if entry := entries.get(_short(field.type_name)):
        key, value = (_field_type(each, {}) for each in entry.field)
        return f"map of {key} to {value}"
    kind = _short(field.type_name) or kinds.Name(field.type).removeprefix("TYPE_").lower()
    repeated = field.label == descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    return f"list of {kind}" if repeated else kind


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _comment(comments: Comments, path: tuple[int, ...]) -> str:
    text = re.sub(r"(?m)^-{3,}.*$", "", comments.get(path, "")).strip()
    return _sentences(text) if text else ""


# ---- errors


def error_classes(root: Path) -> dict[str, type[errors.MoothallError]]:
    """Return the class of each stable error code, from every module that declares one. The codes
    in lower case are those of the agent service (docs/api.md).
    """
    classes = {}
    for file in sorted((root / "src/moothall").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if 'code = "' not in text:
            continue
        names = [
            node.name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ClassDef)
            and any(
                isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code"
                for line in node.body
            )
        ]
        module = ".".join(file.relative_to(root / "src").with_suffix("").parts)
        for name in names:
            kind = getattr(importlib.import_module(module), name)
            if issubclass(kind, errors.MoothallError) and kind.code.isupper():
                classes[kind.code] = kind
    return classes


def errors_page(root: Path) -> str:
    """Return the list of error codes; each links to its part of the page on troubleshooting."""
    lines = []
    for code, kind in sorted(error_classes(root).items()):
        error = kind.__new__(kind)  # the statuses follow from the class
        lines += [
            f"[`{code}`](../troubleshooting.md#{code.lower()})",
            f": {_sentence(kind.__doc__ or '')}\\",
            f"  gRPC `{grpc_code(error).name}`, HTTP {http_status_of(error)}\n",
        ]
    return "\n".join(lines)


# ---- JSON documents


def json_page(root: Path) -> str:
    """Return links to the schemas of `--json`."""
    files = sorted((root / "docs/schemas").glob("*.json"))
    return "\n".join(f"- [{file.stem}](../schemas/{file.name})" for file in files)


PAGES: Mapping[str, Callable[[Path], str]] = {
    "reference/settings": settings_page,
    "reference/protos": protos_page,
    "reference/errors": errors_page,
    "reference/json": json_page,
}
"""The pages that have a generated part."""
