"""The version of what a checkpoint holds, and how older ones are brought up to date."""

from collections.abc import Callable
from typing import Any

# To be raised whenever a state changes its form, together with an entry in the table below and a
# checkpoint of the old form in the tests, which has to stay readable.
SCHEMA_VERSION = 1

# By the version they start from: functions that bring a state one version further.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def migrate(state: dict[str, Any], found: int) -> dict[str, Any]:
    """Bring a state of an older version up to date, one version at a time."""
    for version in range(found, SCHEMA_VERSION):
        state = MIGRATIONS[version](state)
    return state
