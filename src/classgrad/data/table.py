"""How a released dataset is described."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from classgrad.errors import unknown

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Download:
    """One file at its official address; `unpack` tells how it becomes `place` under the root.

    `checksum` is "algorithm:hex", or None where the publisher gives none: such a file is judged by
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
    """The facts of one split: `images` and `labels` are sha256 of the decoded arrays.

    Images count as uint8 (N, C, H, W), labels as uint8 followed by the coarse labels if there are
    any. None stands for a value that is not known; `files` holds checksums of the released files.
    """

    count: int
    per_class: tuple[int, ...] | None = None
    images: str | None = None
    labels: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """A dataset as its publisher released it; `remark` is to stand beside every figure."""

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
    # The largest released file has 182 MB; what exceeds this is no file of these datasets.
    largest: int = 512 * 2**20

    def split(self, name: str) -> Split:
        """Return the facts of the split called `name`."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        return self.train if name == "train" else self.test

    @property
    def hint(self) -> str | None:
        """Return the hint for the command line that goes with the remedy."""
        return f"fetch:{self.name}" if self.downloads else None

    def remedy(self, again: bool = False) -> str:
        """Say how to get the files."""
        if self.downloads:
            return f"fetch it{' again' if again else ''} with classgrad.data.fetch"
        return f"get it from {self.by_hand} and unpack it in {self.folder}/"
