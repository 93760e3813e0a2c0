"""Independent random generators, one for each purpose, all from the seed of a run."""

import hashlib

import torch


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return the random generator for a purpose in the run with this seed.

    Every purpose has its own generator, so a new one (a dropout layer, a method that samples) does
    not change the numbers that others draw.

    >>> a, b = generator(1, "order", 0), generator(1, "order", 0)
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).all())
    True
    """
    words = ":".join(str(part) for part in (seed, *purpose))
    digest = hashlib.sha256(words.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
