"""The table of known models: windows and prices of hosted models, for what the settings and the
server leave open. `known_models.toml` has the date and the sources.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from urllib.parse import urlsplit

_FILE = "known_models.toml"
_DATE = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2})$")
SOURCE = "the table of known models"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A hosted model. Prices are US dollars per million tokens; window: the tokens of a prompt at
    these prices.
    """

    window: int
    price_in: float
    price_cached: float
    price_out: float

    @property
    def price_text(self) -> str:
        """The prices in words."""
        return (
            f"${self.price_in:g} for a million prompt tokens (${self.price_cached:g} from the "
            f"cache), ${self.price_out:g} for a million completion tokens"
        )


def find_model(base_url: str | None, model: str) -> KnownModel | None:
    """Return a model of a server by its name, with or without a date at its end; None if it is
    unknown.
    """
    host = urlsplit(base_url or "").hostname
    models = _table().get(host or "", {})
    return models.get(model) or models.get(_DATE.sub("", model))


def checked_on() -> str:
    """Return the date of the table."""
    return str(_document()["checked"])


@lru_cache(maxsize=1)
def _document() -> Mapping[str, object]:
    return tomllib.loads(files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, KnownModel]]:
    servers = _document()["servers"]
    assert isinstance(servers, dict)  # noqa: S101 - for mypy: the file is ours, and a test reads it
    return {
        host: {name: KnownModel(**fields) for name, fields in server["models"].items()}
        for host, server in servers.items()
    }
