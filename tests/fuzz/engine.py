"""Trying a target with damaged files, many times."""

import contextlib
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from classgrad.errors import UserError
from fuzz.guard import guarded
from fuzz.target import Target
from fuzz.targets import TARGETS


def fuzz(target: Target, folder: Path, inputs: int, *, repeatable: bool) -> Counter[str]:
    """Try a target with at least so many inputs; return how many were "read" and "refused".

    Any exception but a UserError of one line, and whatever else `guarded` does not allow, comes out
    as a failure with the smallest input that shows it. `repeatable` has the same inputs each time.
    """
    path = target.make(folder)
    sound = path.read_bytes()
    _import_what_is_needed(target, folder, path)
    path.write_bytes(sound)
    target.read(folder)
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=inputs,
        derandomize=repeatable,
        deadline=None,
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(target.contents(sound))
    def attempt(content: bytes) -> None:
        path.write_bytes(content)
        outcomes[_outcome(target, folder)] += 1

    attempt()
    return outcomes


def report(name: str, inputs: int) -> tuple[dict[str, int] | None, str]:
    """Try a target; return how many inputs were read and refused, or None, and a text about it."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcomes = fuzz(TARGETS[name], Path(folder).resolve(), inputs, repeatable=False)
        except Exception:
            return None, f"{name}: FAILED\n{traceback.format_exc()}"
    counts = f"{outcomes.total():>7,} inputs: {outcomes['read']:>6,} read, "
    seconds = time.monotonic() - begun
    text = f"{name:<17}{counts}{outcomes['refused']:>6,} refused, {seconds:4.0f} s"
    return {"read": outcomes["read"], "refused": outcomes["refused"]}, text


def _outcome(target: Target, folder: Path) -> str:
    with guarded(folder):
        try:
            target.read(folder)
        except UserError as error:
            message = str(error)
        else:
            return "read"
    assert message.isprintable(), f"not one plain line: {message!r}"
    assert 0 < len(message) < 2000, f"no message to read: {len(message)} characters"
    return "refused"


def _import_what_is_needed(target: Target, folder: Path, path: Path) -> None:
    """Let readers import what they do late: under guard, an import counts as running code."""
    for content in (b"", b"\0" * 200):
        path.write_bytes(content)
        with contextlib.suppress(Exception):
            target.read(folder)
