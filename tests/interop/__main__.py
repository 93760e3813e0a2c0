"""What `make interop` measures: python -m interop --out results/interop.json."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import accelerate
import transformers

from classgrad.runs.record import versions
from interop.guarded import CASES, UNCOUNTED, measure, measure_uncounted


def main() -> None:
    """Print a line for each model, and write a file of the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("--only", help="models with this in their name; others stay as they are")
    given = parser.parse_args()
    others = {module.__name__: module.__version__ for module in (transformers, accelerate)}
    content: dict[str, Any] = {"models": {}, "uncounted": {}}
    if given.only and given.out and given.out.exists():
        content |= json.loads(given.out.read_text())
    content["versions"] = {**versions(), **others}
    with tempfile.TemporaryDirectory() as place:
        for label, (case, pretrained) in CASES.items():
            if (given.only or "") in label:
                content["models"][label] = found = measure(case, pretrained, Path(place))
                shown = {key: float(f"{value:.3g}") for key, value in found.items()}
                print(label, shown, flush=True)
    for label, (case, make) in UNCOUNTED.items():
        if (given.only or "") in label:
            content["uncounted"][label] = measure_uncounted(case, make())
            print(label, content["uncounted"][label], flush=True)
    if given.out:
        given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
