"""The machine, versions and command that figures were measured with."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def describe_machine(arguments: list[str], quick: bool) -> dict[str, Any]:
    """Return the command, date, machine and versions, which are saved with all figures."""
    return {
        "command": " ".join(["python -m benchmarks", *arguments]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "load": os.getloadavg()[0],  # over the minute before
            "system": platform.system(),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "pillow")},
        },
    }


def cpu_model() -> str:
    """Return the name of the processor."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
