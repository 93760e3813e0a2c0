"""Everything there is to choose from, in words: the tables, and the settings of their entries."""

import json

from classgrad.benchmarks import BENCHMARKS
from classgrad.benchmarks.folder import FolderOptions
from classgrad.errors import unknown
from classgrad.experiments import spec as experiments
from classgrad.methods import METHODS
from classgrad.networks import NETWORKS
from classgrad.runs import recipes
from classgrad.settings import Settings
from classgrad.training.config import Training


def everything() -> dict[str, dict[str, str]]:
    """Return each table with one line per entry."""
    return {
        "methods": {name: method.summary for name, method in METHODS.items()},
        "benchmarks": {
            **{name: benchmark.summary for name, benchmark in BENCHMARKS.items()},
            "folder:PATH": "images of your own: PATH/task/class/image",
        },
        "networks": {name: network.summary for name, network in NETWORKS.items()},
        "recipes": {name: recipes.load(name).description for name in recipes.names()},
        "experiments": {name: experiments.load(name).title for name in experiments.names()},
    }


def settings_of(name: str) -> dict[str, str]:
    """Return what can be set on an entry of a table, or on training, with the defaults.

    >>> settings_of("cgp")["similarity (eta)"]
    'cosine above which classes share a group (η); 1: never (default 0.7)'
    """
    owners: dict[str, type[Settings]] = {
        "training": Training,
        **METHODS,
        **{key: benchmark.Options for key, benchmark in BENCHMARKS.items()},
        "folder": FolderOptions,
        **{key: network.Options for key, network in NETWORKS.items()},
    }
    if name not in owners:
        raise unknown("method, benchmark or network", name, owners)
    settings = owners[name]
    aliases = {name: alias for alias, name in settings.aliases.items()}
    return {
        f"{name} ({aliases[name]})" if name in aliases else name: (
            f"{field.description} (default {json.dumps(field.default)})"
        )
        for name, field in settings.model_fields.items()
    }
