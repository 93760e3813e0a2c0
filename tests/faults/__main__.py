"""What `make faults` does: kill runs of every method many times, and resume them.

Takes how many times, and a file for the figures: python -m faults --kills 300 --out found.json
"""

import argparse
import json
import tempfile
from pathlib import Path

from classgrad.methods import METHODS
from classgrad.runs.record import versions
from faults.kills import survives, warm_up


def main() -> None:
    """Print a line for each method; exit code 1 if a run ended otherwise than one left alone."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30, help="of runs of every method")
    parser.add_argument("--methods", nargs="*", default=METHODS, help="if not all")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    given = parser.parse_args()
    warm_up()
    result = {}
    with tempfile.TemporaryDirectory() as place:
        for name in given.methods:
            result[name] = one = survives(name, Path(place) / name, given.kills)
            kills = sum(one["kills"].values())
            line = f"{name:<10}{kills:>4} kills, {one['wrong']} wrong, {one['seconds']:>5.0f} s"
            print(line, flush=True)
    if given.out:
        content = {"versions": versions(), "methods": result}
        given.out.write_text(json.dumps(content, indent=1) + "\n")
    raise SystemExit(any(one["wrong"] for one in result.values()))


if __name__ == "__main__":
    main()
