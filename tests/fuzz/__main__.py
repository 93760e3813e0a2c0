"""What `make fuzz` does: every target with many inputs, two at a time; other ones each time.

Takes the number of inputs and the names of targets: python -m fuzz 20000 record mat
"""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from fuzz.engine import report
from fuzz.targets import TARGETS

INPUTS = 20_000


def main() -> None:
    """Try the targets and print a line for each; exit code 1 if any fails."""
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else INPUTS
    names = sys.argv[2:] or list(TARGETS)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        found = list(pool.map(report, names, [inputs] * len(names)))
    print(*(text for _, text in found), sep="\n")
    sys.exit(not all(well for well, _ in found))


if __name__ == "__main__":
    main()
