"""What `classgrad list` prints, from the classes of all entries.

    python tests/list_tables.py

writes it to src/classgrad/cli/tables.json, so that the command does not need the classes.
"""

import json
from pathlib import Path
from typing import Any

from classgrad.benchmarks import BENCHMARKS
from classgrad.benchmarks.folder import FolderOptions
from classgrad.cli import tables
from classgrad.experiments import spec as experiments
from classgrad.methods import METHODS
from classgrad.networks import NETWORKS
from classgrad.runs import recipes
from classgrad.settings import Settings
from classgrad.training.config import Training

FILE = Path(tables.__file__).with_name("tables.json")


def of_code() -> dict[str, Any]:
    """Return all tables by title, and the settings of every entry."""
    settings: dict[str, type[Settings]] = {
        "training": Training,
        **METHODS,
        **{name: benchmark.Options for name, benchmark in BENCHMARKS.items()},
        "folder": FolderOptions,
        **{name: network.Options for name, network in NETWORKS.items()},
    }
    return {
        "tables": {
            "methods": {name: method.summary for name, method in METHODS.items()},
            "benchmarks": {
                **{name: benchmark.summary for name, benchmark in BENCHMARKS.items()},
                "folder:PATH": "images of your own: PATH/task/class/image",
            },
            "networks": {name: network.summary for name, network in NETWORKS.items()},
            "recipes": {name: recipes.load(name).description for name in recipes.names()},
            "experiments": {name: experiments.load(name).title for name in experiments.names()},
        },
        "settings": {name: described(kind) for name, kind in settings.items()},
    }


def described(settings: type[Settings]) -> dict[str, str]:
    """Return the description and default of each setting, by its name and alias."""
    aliases = {name: alias for alias, name in settings.aliases.items()}
    return {
        f"{name} ({aliases[name]})" if name in aliases else name: (
            f"{field.description} (default {json.dumps(field.default)})"
        )
        for name, field in settings.model_fields.items()
    }


def text() -> str:
    """Return the contents of the file."""
    return json.dumps(of_code(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
