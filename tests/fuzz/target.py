"""One file that classgrad reads, as something to damage."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from fuzz.mutations import mutated

Strategy = st.SearchStrategy[bytes]


@dataclass(frozen=True)
class Target:
    """`make` writes sound files in a folder and returns the one to damage; `read` reads them.

    `read` returns, or raises UserError. `inputs` takes the content of the sound file and returns
    strategies of the format's own, which reach further into it than damage at random.
    """

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    inputs: Callable[[bytes], Strategy] = lambda sound: st.nothing()

    def contents(self, sound: bytes) -> Strategy:
        """Return everything the file is tried with."""
        return mutated(sound) | self.inputs(sound) | st.binary(max_size=300)
