"""The defaults of today's code, and how the table of them gets a new version.

    python tests/defaults_table.py

adds a version to src/classgrad/defaults.json with what has changed since the last one. Versions
that were released are never changed.
"""

import inspect
import json
from pathlib import Path
from typing import Any

from classgrad import Learner, defaults
from classgrad.benchmarks import BENCHMARKS
from classgrad.benchmarks.folder import FolderOptions
from classgrad.methods import METHODS
from classgrad.networks import NETWORKS
from classgrad.settings import Settings
from classgrad.training.config import Training

FILE = Path(defaults.__file__).with_name("defaults.json")
# What the state of a learner calls its own settings, and what `Learner` does.
SAME = (
    "precision",
    "seed",
    "size",
    "valid_fraction",
    "tune",
    "priors",
    "kept_features",
    "kept_states",
)
LEARNER = {name: name for name in SAME} | {"keeps_prototypes": "prototypes"}


def kinds() -> dict[str, type[Settings]]:
    """Return the settings of every part."""
    return {
        "training": Training,
        **{f"method {name}": kind for name, kind in METHODS.items()},
        **{f"network {name}": kind.Options for name, kind in NETWORKS.items()},
        **{f"benchmark {name}": one.Options for name, one in BENCHMARKS.items()},
        "benchmark folder": FolderOptions,
    }


def of_code() -> dict[str, dict[str, Any]]:
    """Return the defaults of every part as the code has them."""
    signature = inspect.signature(Learner.__init__).parameters
    learner = {name: signature[word].default for name, word in LEARNER.items()}
    result = {part: kind().model_dump() for part, kind in kinds().items()}
    return defaults.as_json({**result, "learner": learner})


def changes() -> dict[str, dict[str, Any]]:
    """Return what today's code has that the newest version of the table has not."""
    new = {
        part: {
            name: value
            for name, value in values.items()
            if name not in (known := defaults.of(part)) or known[name] != value
        }
        for part, values in of_code().items()
    }
    return {part: values for part, values in new.items() if values}


def main() -> None:
    """Add a version."""
    new = changes()
    if not new:
        print("nothing has changed")
        return
    table = json.loads(FILE.read_text())
    table["versions"][str(defaults.newest_version() + 1)] = new
    FILE.write_text(json.dumps(table, indent=1) + "\n")
    print(f"version {defaults.newest_version() + 1}: {new}")


if __name__ == "__main__":
    main()
