"""Tables of methods, benchmarks, networks, recipes and experiments, and settings of the entries."""

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


def all_tables() -> dict[str, dict[str, str]]:
    """Return each table by its title, with a summary of each entry by name."""
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
    """Return the settings of an entry, or of training, with their descriptions and defaults.

    >>> settings_of("cgp")["similarity (eta)"]
    'cosine above which classes share a group (η); 1: never (default 0.7)'
    """
    settings_classes: dict[str, type[Settings]] = {
        "training": Training,
        **METHODS,
        **{key: benchmark.Options for key, benchmark in BENCHMARKS.items()},
        "folder": FolderOptions,
        **{key: network.Options for key, network in NETWORKS.items()},
    }
    if name not in settings_classes:
        raise unknown("method, benchmark or network", name, settings_classes)
    settings = settings_classes[name]
    aliases = {name: alias for alias, name in settings.aliases.items()}
    return {
        f"{name} ({aliases[name]})" if name in aliases else name: (
            f"{field.description} (default {json.dumps(field.default)})"
        )
        for name, field in settings.model_fields.items()
    }
