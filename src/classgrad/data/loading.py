"""From files to tensors: find, decode, and compare with the release; or only check the files."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from classgrad.data import cifar, clinc150, idx, notmnist, notmnist32, svhn
from classgrad.data.datasets import (
    SPLITS,
    Content,
    Dataset,
    Images,
    Missing,
    Source,
    Split,
    checksums,
    damaged,
    read,
    released,
    unusable,
)
from classgrad.data.releases import DATASETS, describe
from classgrad.errors import UserError

SPLIT_NAMES = {"train": "training", "test": "test"}


class Format(Protocol):
    """The interface of a module for a file format."""

    def find(self, root: Path, data: Dataset, split: str) -> list[Path]:
        """Return the files of a split."""

    def decode(self, sources: list[Source], data: Dataset, split: str) -> Images:
        """Return the images in the files."""


FORMATS: dict[str, Format] = {
    "cifar": cifar,
    "clinc150": clinc150,
    "idx": idx,
    "notmnist": notmnist,
    "notmnist32": notmnist32,
    "svhn": svhn,
}


def load(which: str | Dataset, root: str | Path, split: str = "train") -> Images:
    """Return the images of one split of a dataset found under `root`.

    `which` is a name in `DATASETS`.
    """
    data, root = describe(which), Path(root).expanduser()
    release = data.split(split)
    file_format = FORMATS[data.format]
    paths = file_format.find(root, data, split)
    images = file_format.decode([(path, read(data, path)) for path in paths], data, split)
    if len(images) > release.count:
        what = f"{len(images):,} {data.content}, the release has {release.count:,}"
        raise damaged(data, paths[-1], what)
    content = checksums(images)
    _refuse_another(data, split, paths[-1].parent, content)
    same = (
        release.images is None and len(images) == release.count and released(paths, release.files)
    )
    status, note = compare(release, split, images, content, same_files=same, words=data.content)
    return replace(images, status=status, note=f"{note}; {data.remark}" if data.remark else note)


def compare(
    release: Split,
    split: str,
    images: Images,
    content: Content,
    *,
    same_files: bool,
    words: str = "images",
) -> tuple[str, str]:
    """Compare images with the release, and return the status and a note.

    `same_files` says that the files are byte for byte those of the release; it decides where no
    checksum of the decoded release is known.
    """
    counted = f"{len(images):,} of {release.count:,} {SPLIT_NAMES[split]} {words}"
    if same_files or content == (release.images, release.labels):
        return "complete", f"{len(images):,} {SPLIT_NAMES[split]} {words}, as released"
    if len(images) < release.count:
        exceeding = [
            name
            for name, count, released_count in zip(
                images.class_names, images.per_class, release.per_class or (), strict=False
            )
            if count > released_count
        ]
        if exceeding:
            return "other", f"{counted}, but more of class '{exceeding[0]}' than the release has"
        return "subset", counted
    if release.images is None and not release.files:
        return "other", f"{counted}; the content cannot be compared, no checksum of it is known"
    if release.images is None:
        labels = ", with the labels of the release" if content.labels == release.labels else ""
        return "other", f"{counted}{labels}, in files other than the released ones"
    compared = (
        ("pixels" if words == "images" else words, content.images, release.images),
        ("labels", content.labels, release.labels),
    )
    differing = " and ".join(part for part, actual, expected in compared if actual != expected)
    return "other", f"{counted}, whose {differing} differ from the release"


def _refuse_another(data: Dataset, split: str, folder: Path, content: Content) -> None:
    """Refuse the files of another release, or of the other split, under this one's name."""
    for other in DATASETS.values():
        for name in SPLITS:
            release = other.split(name)
            if (other.name, name) == (data.name, split):
                continue
            if content.images == release.images or content.labels == release.labels:
                actual = f"{other.title}'s {SPLIT_NAMES[name]} files"
                expected = f"{data.title}'s {SPLIT_NAMES[split]} files"
                what = f"these are {actual}, not {expected}; move them away"
                raise unusable(data, folder, what)


# From worst to best: a dataset is as good as the worse of its splits.
ORDER = ("missing", "other", "subset", "complete")


@dataclass(frozen=True)
class Finding:
    """The result of checking a split; `status` is one of `ORDER`."""

    split: str
    status: str
    note: str
    count: int = 0
    per_class: tuple[int, ...] = ()
    hint: str | None = None  # for the command line, as that of a `UserError`


@dataclass(frozen=True)
class Report:
    """The result of checking a dataset."""

    name: str
    title: str
    findings: tuple[Finding, ...]

    @property
    def status(self) -> str:
        """Return the status of the worse split."""
        return min((finding.status for finding in self.findings), key=ORDER.index)

    @property
    def note(self) -> str:
        """Return the notes on all splits in one line."""
        notes = dict.fromkeys(finding.note for finding in self.findings)
        return f"{self.title}: {'; '.join(notes)}"


def check(which: str | Dataset, root: str | Path) -> Report:
    """Decode both splits and compare shape, counts and checksums with the release.

    A repacked copy counts as the same, since decoded content is compared.
    """
    data = describe(which)
    return Report(data.name, data.title, tuple(_examine(data, root, split) for split in SPLITS))


def _examine(data: Dataset, root: str | Path, split: str) -> Finding:
    try:
        images = load(data, root, split)
    except Missing as error:
        return Finding(split, "missing", str(error), hint=error.hint)
    except UserError as error:
        return Finding(split, "other", str(error), hint=error.hint)
    return Finding(split, images.status, images.note, len(images), images.per_class)
