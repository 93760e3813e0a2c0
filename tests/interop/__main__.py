"""What `make interop` measures: python -m interop --out results/interop.json."""

import argparse
import json
import tempfile
from pathlib import Path

import accelerate
import transformers

from classgrad.runs.record import versions
from interop.guarded import CASES, measure, measure_massive_channel


def main() -> None:
    """Print a line for each model, and write a file of the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    given = parser.parse_args()
    models = {}
    with tempfile.TemporaryDirectory() as place:
        for label, (name, pretrained) in CASES.items():
            models[label] = found = measure(name, pretrained, Path(place))
            print(label, {key: float(f"{value:.3g}") for key, value in found.items()}, flush=True)
    if given.out:
        others = {module.__name__: module.__version__ for module in (transformers, accelerate)}
        content = {
            "versions": {**versions(), **others},
            "models": models,
            "massive channel": measure_massive_channel(),
        }
        given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
