"""Starts processes that find each other, as torchrun would."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from forked import Forked

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that runs this code, with one thread."""
    path = os.pathsep.join(str(ROOT / name) for name in ("src", "tests", "tests/distributed"))
    usual = {n: v for n, v in os.environ.items() if n not in ("RANK", "WORLD_SIZE")}
    return {**usual, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **more}


def start(size: int, words: Sequence[str], **more: str) -> list[Forked]:
    """Start so many processes of a script."""
    with socket.socket() as result:
        result.bind(("127.0.0.1", 0))
        port = result.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    ranks = [{**place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
    return [Forked(words, ".", environment(**rank, **more)) for rank in ranks]


def start_torchrun(words: Sequence[str], **more: str) -> subprocess.Popen[str]:
    """Start torchrun with these words."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *words],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(started: Sequence[subprocess.Popen[str] | Forked]) -> list[tuple[int, str, str]]:
    """Wait for processes; return code, standard output and error of each."""
    said = []
    for process in started:
        try:
            said.append(process.communicate(timeout=120))
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun then ends its processes too
            said.append(process.communicate())
    return [(p.returncode, out, err) for p, (out, err) in zip(started, said, strict=True)]
