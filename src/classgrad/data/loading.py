"""From files to tensors: find, decode, and judge against the release."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from classgrad.data import cifar, idx, notmnist, notmnist32, svhn
from classgrad.data.files import Source, damaged, read, released, unusable
from classgrad.data.images import Content, Images, checksums
from classgrad.data.releases import DATASETS, describe
from classgrad.data.table import SPLITS, Dataset, Split

WORDS = {"train": "training", "test": "test"}


class Format(Protocol):
    """What a module for a file format offers."""

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
    facts = data.split(split)
    form = FORMATS[data.format]
    paths = form.find(root, data, split)
    images = form.decode([(path, read(data, path)) for path in paths], data, split)
    if len(images) > facts.count:
        what = f"{len(images):,} images, the release has {facts.count:,}"
        raise damaged(data, paths[-1], what)
    held = checksums(images)
    _refuse_another(data, split, paths[-1].parent, held)
    same = facts.images is None and len(images) == facts.count and released(paths, facts.files)
    status, note = judge(facts, split, images, held, same_files=same)
    return replace(images, status=status, note=f"{note}; {data.remark}" if data.remark else note)


def judge(
    facts: Split, split: str, images: Images, held: Content, *, same_files: bool
) -> tuple[str, str]:
    """Compare images with the release and return the status and a note in words.

    `same_files` tells that the files are byte for byte those of the release; it decides where no
    checksum of the decoded release is known.
    """
    counted = f"{len(images):,} of {facts.count:,} {WORDS[split]} images"
    if same_files or held == (facts.images, facts.labels):
        return "complete", f"{len(images):,} {WORDS[split]} images, as released"
    if len(images) < facts.count:
        over = [
            name
            for name, found, released in zip(
                images.class_names, images.per_class, facts.per_class or (), strict=False
            )
            if found > released
        ]
        if over:
            return "other", f"{counted}, but more of class '{over[0]}' than the release has"
        return "subset", counted
    if facts.images is None and not facts.files:
        return "other", f"{counted}; the content cannot be compared, no checksum of it is known"
    if facts.images is None:
        kept = ", with the labels of the release" if held.labels == facts.labels else ""
        return "other", f"{counted}{kept}, in files other than the released ones"
    compared = (("pixels", held.images, facts.images), ("labels", held.labels, facts.labels))
    differing = " and ".join(word for word, mine, theirs in compared if mine != theirs)
    return "other", f"{counted}, whose {differing} differ from the release"


def _refuse_another(data: Dataset, split: str, folder: Path, held: Content) -> None:
    """Refuse the files of another release, or of the other split, under this one's name."""
    for other in DATASETS.values():
        for name in SPLITS:
            facts = other.split(name)
            if (other.name, name) == (data.name, split):
                continue
            whose = f"{other.title}'s {WORDS[name]} files, not {data.title}'s {WORDS[split]} files"
            if held.images == facts.images or held.labels == facts.labels:
                raise unusable(data, folder, f"these are {whose}; move them away")
