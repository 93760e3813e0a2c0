"""Tables of methods, benchmarks, networks, recipes and experiments, and settings of the entries.

The classes of the entries say all this, but they need torch, which takes more than a second to
import. So it is also in tables.json; `python tests/list_tables.py` writes it, a test compares it.
"""

import json
from importlib import resources
from typing import Any

from classgrad.errors import unknown


def all_tables() -> dict[str, dict[str, str]]:
    """Return each table by its title, with a summary of each entry by name."""
    tables: dict[str, dict[str, str]] = _read()["tables"]
    return tables


def settings_of(name: str) -> dict[str, str]:
    """Return the settings of an entry, or of training, with their descriptions and defaults.

    >>> settings_of("cgp")["similarity (eta)"]
    'cosine above which classes share a group (η); 1: never (default 0.7)'
    """
    settings: dict[str, dict[str, str]] = _read()["settings"]
    if name not in settings:
        raise unknown("method, benchmark or network", name, settings)
    return settings[name]


def _read() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("tables.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
