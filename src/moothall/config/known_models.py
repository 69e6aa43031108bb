"""The table of known models: windows and prices of hosted models, used where neither the settings
nor the server provide them. `known_models.toml` contains the date and the sources.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

_FILE = "known_models.toml"
_DATE = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2})$")
SOURCE = "the table of known models"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A hosted model. Prices are US dollars per million tokens, for prompts of up to `window`
    tokens.
    """

    window: int
    price_in: float
    price_cached: float
    price_out: float


def find_model(base_url: str | None, model: str) -> KnownModel | None:
    """Return a model of a server by its name, which may end with a date. Return None if the model
    is unknown.
    """
    host = urlsplit(base_url or "").hostname
    models = _table().get(host or "", {})
    return models.get(model) or models.get(_DATE.sub("", model))


def checked_on() -> str:
    """Return the date of the table."""
    return str(_document()["checked"])


@cache
def _document() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))


@cache
def _table() -> Mapping[str, Mapping[str, KnownModel]]:
    return {
        host: {name: KnownModel(**fields) for name, fields in server["models"].items()}
        for host, server in _document()["servers"].items()
    }
