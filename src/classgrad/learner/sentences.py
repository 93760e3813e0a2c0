"""Sentences as inputs of a learner: in files, or as text.

A sentence becomes its words as the network reads them, in small letters without accents, as bytes
in a row of `size` (see `data.sentences`). So sentences that the network cannot tell apart are the
same sentence: it counts once, and in two classes it is refused.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from classgrad.data.lookalikes import Scenes
from classgrad.data.pictures import formats
from classgrad.data.sentences import LENGTH, as_bytes, as_text, read_rows, read_sentences
from classgrad.errors import UserError, counted, shown
from classgrad.learner.inputs import InputKind, Labelled, ReadProgress, in_two_classes, unusable
from classgrad.methods.base import Method
from classgrad.methods.projection.cgp import CGP
from classgrad.networks.wordpiece import words
from classgrad.tasks import Split
from classgrad.training.config import Training

LONGEST = 10_000  # characters: what is longer is a document
MAX_LISTED = 3  # sentences that a message names


class SentenceInputs(InputKind):
    """Sentences, of each of which `size` bytes are read."""

    several, source = "sentences", "text"
    usual_size = LENGTH
    training = Training(epochs=5, batch_size=32, optimizer="adamw", learning_rate=3e-4)
    method_settings = {"contrast": 0.0}  # noqa: RUF012  # as declared in the base

    @staticmethod
    def size_text(size: int) -> str:
        """Return how many bytes are read."""
        return f"{size:,} bytes of a sentence"

    def read_classes(
        self, path: Path, skip_bad: bool = False, progress: ReadProgress | None = None
    ) -> Labelled:
        """Read a table with the columns text and label, or a folder with a .txt per class."""
        self.refuse_pictures(path.expanduser())
        found = read_rows(path.expanduser())
        texts, _, bad = self._try([text for _, text, _ in found], progress)
        if bad and not skip_bad:
            places = [place for place, _, _ in found]
            raise UserError(
                f"{listed(places, bad)}; remove them, or leave them out with skip_bad=True",
                hint="skip_bad",
            )
        labels = [label for place, (_, _, label) in enumerate(found) if place not in bad]
        names = sorted({label for _, _, label in found})
        for name in names:
            if name not in labels:
                raise UserError(f"no sentence of class '{shown(name)}' is left: add one")
        number_of = {name: number for number, name in enumerate(names)}
        return Labelled(
            as_bytes(texts, self.size),
            torch.tensor([number_of[label] for label in labels]),
            tuple(names),
            [],
            [(found[place][0], reason) for place, reason in bad.items()],
        )

    def stack(self, given: Any) -> Tensor:
        """Return the rows of sentences, or of tensors that are such rows."""
        if isinstance(given, str):
            raise unusable(self)
        return self.read(given if isinstance(given, Tensor) else list(given))

    def read(self, given: Any) -> Tensor:
        """Return the rows of a sentence, of a list of them or of a file, which is a `Path`.

        A tensor of rows stays as it is.
        """
        if isinstance(given, Tensor):
            self.refuse_shape(given.shape[-1:] if given.dim() == 2 else given.shape)
            if given.dtype != torch.uint8:
                raise UserError(f"sentences are rows of uint8, or text (got {given.dtype})")
            return given
        several = isinstance(given, list | tuple)
        inputs, sources, bad = self.attempt(given if several else [given])
        if bad:
            raise UserError(f"{listed(self.names(sources), bad)}; leave them out")
        return inputs

    def attempt(
        self, given: Sequence[Any], progress: ReadProgress | None = None
    ) -> tuple[Tensor, list[Any], dict[int, str]]:
        """Read sentences, and all that are in files."""
        if not len(given):
            raise UserError("no sentence is given: the list is empty")
        sentences: list[str] = []
        for one in given:
            if isinstance(one, Path):
                self.refuse_pictures(one.expanduser())
                sentences += read_sentences(one.expanduser())
            elif isinstance(one, str):
                sentences.append(one)
            else:
                raise UserError(
                    f"a {type(one).__name__} is no sentence: give text, the Path of a file of "
                    "sentences, or a list of these"
                )
        texts, sources, bad = self._try(sentences, progress)
        return as_bytes(texts, self.size), list(sources), bad

    def _try(
        self, sentences: Sequence[str], progress: ReadProgress | None
    ) -> tuple[list[str], Sequence[str], dict[int, str]]:
        """Return the words of sentences that can be read, all sentences, and which cannot."""
        texts: list[str] = []
        bad: dict[int, str] = {}
        for place, sentence in enumerate(sentences):
            if len(sentence) > LONGEST:
                bad[place] = f"it has {len(sentence):,} characters, and {LONGEST:,} are the most"
            elif text := " ".join(words(sentence)):
                texts.append(text)
            else:
                bad[place] = "it is empty"
            if progress is not None:
                progress(place + 1, len(sentences))
        return texts, sentences, bad

    def names(self, sources: Sequence[Any]) -> list[str]:
        """Return sentences by their numbers: they may be long, or empty."""
        return [f"sentence {place + 1}" for place in range(len(sources))]

    def none_readable(self, sources: Sequence[Any], bad: Mapping[int, str]) -> UserError:
        """Return the error for sentences of which none can be read."""
        return UserError(f"no sentence is left: {listed(self.names(sources), bad)}")

    def remark(self, inputs: Tensor) -> str:
        """Return that sentences are so long that only their beginning is read, if any are."""
        # A character that would be cut in two is left out; it has at most four bytes.
        count = int(inputs[:, -4:].any(dim=1).sum())
        if not count:
            return ""
        return f"{counted(count, 'sentence')}: only the first {self.size:,} bytes are read"

    def scenes(self, parts: Sequence[Split], names: Sequence[str]) -> Scenes:
        """Let sentences that are the same count as one; refuse them in two classes."""
        first: dict[bytes, tuple[int, int]] = {}
        numbers: list[int] = []
        for part in parts:
            pairs = zip(part.images.cpu().numpy(), part.labels.tolist(), strict=True)
            for row, label in pairs:
                number, of_class = first.setdefault(row.tobytes(), (len(numbers), label))
                if of_class != label:
                    raise in_two_classes(
                        self.called(torch.from_numpy(row)), names[of_class], names[label]
                    )
                numbers.append(number)
        return Scenes(torch.tensor(numbers, dtype=torch.int64))

    def refuse_method(self, method: Method) -> None:
        """Refuse a contrastive loss: it compares images with altered copies of them."""
        if isinstance(method, CGP) and (method.contrast or method.classify_copies):
            raise UserError(
                "cgp makes altered copies of images, and sentences have none: give it contrast=0 "
                "and classify_copies=False"
            )

    def refuse_shape(self, shape: Sequence[int]) -> None:
        """Refuse inputs that are no rows of bytes."""
        if tuple(shape) != (self.size,):
            raise UserError(
                f"this learner reads sentences, not inputs of shape {tuple(shape)}: give text, or "
                f"rows of {self.size:,} bytes"
            )

    def refuse_pictures(self, path: Path) -> None:
        """Refuse files of pictures."""
        if Image.registered_extensions().get(path.suffix.lower()) in formats():
            raise UserError(
                f"'{shown(path)}' is a picture, but this learner reads sentences: give text"
            )

    def called(self, row: Tensor) -> str:
        """Return the sentence."""
        return f"the sentence '{shown(as_text(row[None])[0])}'"


def listed(places: Sequence[str], bad: Mapping[int, str]) -> str:
    """Return which sentences cannot be read, and why."""
    first = list(bad.items())[:MAX_LISTED]
    named = ", ".join(f"{places[place]} ({reason})" for place, reason in first)
    more = f" and {len(bad) - MAX_LISTED:,} more" if len(bad) > MAX_LISTED else ""
    return f"{len(bad):,} of {counted(len(places), 'sentence')} cannot be read: {named}{more}"
