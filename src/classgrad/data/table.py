"""Descriptions of released datasets."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from classgrad.errors import unknown

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Download:
    """A file at its official address; `unpack` says how it becomes `place` under the root.

    `checksum` is "algorithm:hex", or None if the publisher gives none: such a file is checked by
    its size and by the decoded content.
    """

    address: str
    size: int
    checksum: str | None
    place: str
    unpack: str = ""
    members: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the last part of the address."""
        return self.address.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Split:
    """A split of a release: `images` and `labels` are the sha256 of the decoded arrays.

    Images are hashed as uint8 (N, C, H, W), labels as uint8 followed by the coarse labels if there
    are any. None means that a value is not known; `files` has checksums of the released files.
    """

    count: int
    per_class: tuple[int, ...] | None = None
    images: str | None = None
    labels: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """A dataset as its publisher released it; `remark` is added to every note on its data."""

    name: str
    title: str
    format: str
    folder: str
    shape: tuple[int, int, int]
    train: Split
    test: Split
    licence: str
    class_names: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    remark: str = ""
    # Bytes. The largest released file has 182 MB; a larger file is not one of these datasets.
    largest: int = 512 * 2**20

    def split(self, name: str) -> Split:
        """Return the split called `name`."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        return self.train if name == "train" else self.test

    @property
    def hint(self) -> str | None:
        """Return the hint for the command line that goes with the remedy."""
        return f"fetch:{self.name}" if self.downloads else None

    def remedy(self, again: bool = False) -> str:
        """Return how to get the files."""
        if self.downloads:
            return f"fetch it{' again' if again else ''} with classgrad.data.fetch"
        return f"get it from {self.by_hand} and unpack it in {self.folder}/"
