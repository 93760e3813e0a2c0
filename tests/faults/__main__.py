"""Kill runs of every method many times: python -m faults --kills 30 --out results/faults.json."""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from rich.progress import track

from classgrad.methods import METHODS
from faults.kills import survives


def main() -> None:
    """Print how many kills each method survived; exit 1 if a run ended otherwise than alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="of runs of every method")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name in track(METHODS, "killing", disable=given.quiet):
            found[name] = survives(name, Path(place) / name, given.kills)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    for name, result in found.items():
        print(
            f"{name:<10} killed {result['random'] + result['placed']:>3}  wrong {result['wrong']}"
        )
    raise SystemExit(any(result["wrong"] for result in found.values()))


if __name__ == "__main__":
    main()
