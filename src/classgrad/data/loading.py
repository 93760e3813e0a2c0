"""From files to tensors: find, decode, and compare with the release."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from classgrad.data import cifar, idx, notmnist, notmnist32, svhn
from classgrad.data.files import Source, damaged, read, released, unusable
from classgrad.data.images import Content, Images, checksums
from classgrad.data.releases import DATASETS, describe
from classgrad.data.table import SPLITS, Dataset, Split

SPLIT_NAMES = {"train": "training", "test": "test"}


class Format(Protocol):
    """The interface of a module for a file format."""

    def find(self, root: Path, data: Dataset, split: str) -> list[Path]:
        """Return the files of a split."""

    def decode(self, sources: list[Source], data: Dataset, split: str) -> Images:
        """Return the images in the files."""


FORMATS: dict[str, Format] = {
    "cifar": cifar,
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
        what = f"{len(images):,} images, the release has {release.count:,}"
        raise damaged(data, paths[-1], what)
    content = checksums(images)
    _refuse_another(data, split, paths[-1].parent, content)
    same = (
        release.images is None and len(images) == release.count and released(paths, release.files)
    )
    status, note = compare(release, split, images, content, same_files=same)
    return replace(images, status=status, note=f"{note}; {data.remark}" if data.remark else note)


def compare(
    release: Split, split: str, images: Images, content: Content, *, same_files: bool
) -> tuple[str, str]:
    """Compare images with the release, and return the status and a note.

    `same_files` says that the files are byte for byte those of the release; it decides where no
    checksum of the decoded release is known.
    """
    counted = f"{len(images):,} of {release.count:,} {SPLIT_NAMES[split]} images"
    if same_files or content == (release.images, release.labels):
        return "complete", f"{len(images):,} {SPLIT_NAMES[split]} images, as released"
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
        ("pixels", content.images, release.images),
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
