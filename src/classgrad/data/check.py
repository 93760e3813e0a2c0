"""Whether the files of a dataset are there, and whether they are those of the release."""

from dataclasses import dataclass
from pathlib import Path

from classgrad.data.files import Missing
from classgrad.data.loading import load
from classgrad.data.releases import describe
from classgrad.data.table import SPLITS, Dataset
from classgrad.errors import UserError

# From worst to best: a dataset is as good as the worse of its splits.
ORDER = ("missing", "other", "subset", "complete")


@dataclass(frozen=True)
class Finding:
    """What was found of one split; `status` is one of `ORDER`."""

    split: str
    status: str
    note: str
    count: int = 0
    per_class: tuple[int, ...] = ()
    hint: str | None = None  # for the command line, which has its own words for it


@dataclass(frozen=True)
class Report:
    """What was found of a dataset."""

    name: str
    title: str
    findings: tuple[Finding, ...]

    @property
    def status(self) -> str:
        """Return the status of the worse split."""
        return min((finding.status for finding in self.findings), key=ORDER.index)

    @property
    def note(self) -> str:
        """Return what there is to say, in one line."""
        notes = dict.fromkeys(finding.note for finding in self.findings)
        return f"{self.title}: {'; '.join(notes)}"


def check(which: str | Dataset, root: str | Path) -> Report:
    """Decode both splits and compare shape, counts and checksums with the release.

    A copy in another packing counts as the same: what is compared is the decoded content.
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
