"""Check whether the files of a dataset exist, and whether they are those of the release."""

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
