"""The commit of the package that runs: of its own checkout, if it is in one."""

import os
import subprocess
from functools import cache
from pathlib import Path

import classgrad

FILE = Path(classgrad.__file__).resolve()
TIMEOUT = 10.0  # seconds, for a checkout on a slow disk


@cache
def package_commit() -> str:
    """Return what git calls the commit, with "-dirty" if the package differs from it.

    Without a checkout of its own, as when it was installed, the version of the package.
    """
    try:
        top = Path(git("rev-parse", "--show-toplevel"))
        # A virtual environment may lie within the checkout of another project.
        if FILE.parent == top.resolve() / "src" / "classgrad":
            name = git("describe", "--tags", "--always", "--abbrev=12")
            changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
            return name + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        pass
    return classgrad.__version__


def git(*words: str) -> str:
    """Return what a git command prints in the folder of the package; it takes no lock."""
    # Set by git for its hooks; they name the repository that is being committed to.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    result = subprocess.run(
        ["git", "--no-optional-locks", *words],
        cwd=FILE.parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    return result.stdout.strip()
