"""What `make fuzz` does: every target with many inputs, two at a time; other ones each time.

Takes names of targets, how many inputs, and a file for the figures:
python -m fuzz record mat --inputs 20000 --out found.json
"""

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from classgrad.runs.record import versions
from fuzz.engine import report
from fuzz.targets import TARGETS


def main() -> None:
    """Try the targets and print a line for each; exit code 1 if any fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="by default all", metavar="NAME")
    parser.add_argument("--inputs", type=int, default=20_000, help="for each target")
    parser.add_argument(
        "--out", type=Path, help="a JSON file for the figures; other targets in it keep theirs"
    )
    given = parser.parse_args()
    names = given.names or list(TARGETS)
    spawn = multiprocessing.get_context("spawn")
    result = {}
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        reports = pool.map(report, names, [given.inputs] * len(names))
        for name, (counts, text) in zip(names, reports, strict=True):
            result[name] = counts
            print(text, flush=True)
    if given.out:
        known = json.loads(given.out.read_text())["targets"] if given.out.exists() else {}
        tried = {name: (known | result)[name] for name in TARGETS if name in known | result}
        content = {"versions": versions(), "targets": tried}
        given.out.write_text(json.dumps(content, indent=1) + "\n")
    sys.exit(None in result.values())


if __name__ == "__main__":
    main()
