"""The schema version of checkpoints, and migrations from older ones."""

from collections.abc import Callable
from typing import Any

# Raise it whenever the form of a state changes, add a migration below, and keep a checkpoint of the
# old form in the tests, which must stay readable.
SCHEMA_VERSION = 1

# Functions that bring a state to the next version, by the version they start from.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def migrate(state: dict[str, Any], schema: int) -> dict[str, Any]:
    """Bring a state of an older schema to the current one, one version at a time."""
    for version in range(schema, SCHEMA_VERSION):
        state = MIGRATIONS[version](state)
    return state
