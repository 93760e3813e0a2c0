"""The processes of a run, what each does, and what goes from one to another.

Every process has all data and draws the same random numbers. In training each works on its own part
of every batch, and what is computed of parts is put together: gradients by
DistributedDataParallel, statistics of BatchNorm and Gram matrices by sums over processes. Elsewhere
whole batches take turns among the processes. One process alone is a world of its own, in which
nothing here does or costs anything.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from classgrad.distributed.voice import Voice
from classgrad.errors import UserError, shown

T = TypeVar("T")

NETWORK = ("onnection", "imed out", "roken pipe")  # in messages of errors of the network


class Lost(UserError):
    """Another process of the run has ended before its time."""


@dataclass(frozen=True)
class Cut:
    """A batch of `whole` samples, of which this process has those from `start` to `stop`."""

    whole: int
    start: int
    stop: int

    @property
    def own(self) -> int:
        """Samples of this process."""
        return self.stop - self.start

    def of_whole(self, count: int) -> int:
        """Return how many values the whole batch has, where this process has `count`."""
        return count // self.own * self.whole


class World:
    """The processes of a run: this is number `rank` of `size`."""

    def __init__(
        self, rank: int = 0, size: int = 1, store: distributed.Store | None = None
    ) -> None:
        self.rank, self.size = rank, size
        self.voice = Voice(rank, size, store)
        self.cut: Cut | None = None  # of the batch at hand, while it is cut among processes
        # Bytes this process has given to others, each counted once: "sums" of what was computed,
        # what one "handed" to all, and "counts", whole numbers with which they agree.
        self.sent: Counter[str] = Counter()

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    # Who does what.

    def own(self, items: Iterable[T]) -> Iterator[T]:
        """Yield what this process does of items that take turns among processes.

        >>> list(World(1, 3).own(range(8)))
        [1, 4, 7]
        """
        return islice(items, self.rank, None, self.size)

    def in_step(self, items: Iterable[T]) -> Iterator[T | None]:
        """Yield items of this process, and None after them as long as others have some left."""
        if self.size == 1:
            yield from items
            return
        left = iter(items)
        while True:
            item = next(left, None)
            if not self.any(item is not None):
                return
            yield item

    def part(self, count: int) -> slice:
        """Return this process's part of so many samples: parts differ by one sample at most.

        >>> [World(rank, 3).part(8) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
        """
        least, more = divmod(count, self.size)
        start = self.rank * least + min(self.rank, more)
        return slice(start, start + least + (self.rank < more))

    @contextmanager
    def cutting(self, count: int) -> Iterator[slice]:
        """Cut a batch of so many samples among the processes; yield this one's part.

        A batch with fewer samples than there are processes stays whole, and each has all of it.
        """
        before, part = self.cut, slice(0, count)
        self.cut = None
        if 1 < self.size <= count:
            part = self.part(count)
            self.cut = Cut(count, part.start, part.stop)
        try:
            yield part
        finally:
            self.cut = before

    @property
    def place(self) -> tuple[int, int] | None:
        """Where this part begins in its batch, and how many samples that has; None if uncut."""
        return None if self.cut is None else (self.cut.start, self.cut.whole)

    @property
    def weight(self) -> float:
        """What a mean over this part counts, so that the mean over processes is that of all."""
        return 1.0 if self.cut is None else self.cut.own * self.size / self.cut.whole

    def weighted(self, loss: Tensor) -> Tensor:
        """Return the mean loss of this part, by its weight."""
        return loss if self.cut is None else loss * self.weight

    def most_rows(self, count: int) -> int:
        """Return about how many rows a part has: the same for all, where this one has `count`."""
        return count if self.cut is None else -(-self.cut.of_whole(count) // self.size)

    # What goes from one to another.

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over processes."""
        return self._sent(_kind(values), values, distributed.all_reduce)

    def sum_in_first(self, values: Tensor) -> Tensor:
        """Return the sum over processes in the first; what others get is worth nothing."""
        return self._sent(_kind(values), values, lambda total: distributed.reduce(total, 0))

    def largest(self, values: Sequence[int]) -> list[int]:
        """Return the largest over processes of each value."""
        if self.size == 1:
            return list(values)
        found = torch.tensor(values, dtype=torch.int64)
        return self._sent(
            "counts", found, lambda most: distributed.all_reduce(most, distributed.ReduceOp.MAX)
        ).tolist()

    def any(self, value: bool) -> bool:
        """Tell whether it is so in any process."""
        return bool(self.largest([value])[0])

    def table(self, values: Tensor) -> Tensor:
        """Return these values of every process, (size, ...)."""
        rows = values.new_zeros(self.size, *values.shape)
        rows[self.rank] = values
        return self.sum(rows)

    def gathered(self, part: Tensor) -> Tensor:
        """Return the rows of the whole batch, given those of this part; gradients come back."""
        return part if self.cut is None else _Gathered.apply(part, self)

    def from_first(self, values: Tensor) -> Tensor:
        """Return what the first process has; the others have values of the same shape."""
        return self._sent("handed", values, lambda found: distributed.broadcast(found, 0))

    def rows_from_first(self, rows: Tensor) -> Tensor:
        """Return the rows that the first process has; the others need not know how many."""
        count = self.largest([len(rows)])[0] if self.size > 1 else len(rows)
        return self.from_first(rows if self.first else rows.new_empty(count, *rows.shape[1:]))

    def level(self, tensors: Iterable[Tensor]) -> None:
        """Let these hold what the first process has."""
        if self.size > 1:
            for values in tensors:
                values.copy_(self.from_first(values))

    def bytes_from_first(self, content: bytes) -> bytes:
        """Return what the first process has, of any length."""
        return self._bytes_from(0, content)

    def _bytes_from(self, rank: int, content: bytes) -> bytes:
        """Return what one process has, of any length."""
        if self.size == 1:
            return content

        def given(values: Tensor) -> Tensor:
            return self._sent("handed", values, lambda found: distributed.broadcast(found, rank))

        length = int(given(torch.tensor(len(content))))
        found = torch.zeros(length, dtype=torch.uint8)
        if self.rank == rank and content:
            found = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return given(found).numpy().tobytes()

    @contextmanager
    def errors_shared(self) -> Iterator[None]:
        """Raise an error that one process finds in the block in all of them, with its words."""
        if self.size == 1:
            yield
            return
        error = None
        try:
            yield
        except UserError as found:
            error = found
        number = self.largest([0 if error is None else self.rank + 1])[0]
        if number:
            raise UserError(self._bytes_from(number - 1, str(error).encode()).decode())

    def by_first(self, work: Callable[[], object]) -> None:
        """Let the first process do something while the others wait; an error is that of all."""
        error = None
        if self.first:
            try:
                work()
            except UserError as found:
                error = found
        if self.any(error is not None):
            raise error or UserError("the first process of the run cannot go on")

    def _sent(self, kind: str, values: Tensor, work: Callable[[Tensor], object]) -> Tensor:
        """Return what becomes of a copy of these values when all processes give theirs."""
        if self.size == 1:
            return values
        found = values.detach().clone(memory_format=torch.contiguous_format)
        self.sent[kind] += found.nbytes
        with self.watched():
            work(found)
        return found

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Say in one line that another process is gone, if that comes out in the block."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not any(word in str(error) for word in NETWORK):
                raise
            raise Lost(
                "another process of this run has ended: the same command goes on from what was "
                f"saved last ({shown(error)})"
            ) from None

    def refuse_differences(
        self, values: Mapping[str, object], remedy: str = "start all of them with the same"
    ) -> None:
        """Refuse to go on where processes differ in some of these."""
        if self.size == 1:
            return
        found = [hashlib.blake2b(repr(v).encode(), digest_size=7) for v in values.values()]
        numbers = [int.from_bytes(one.digest()) for one in found]
        highest = self.largest([*numbers, *(-number for number in numbers)])
        lowest = [-number for number in highest[len(numbers) :]]
        for name, low, high in zip(values, lowest, highest, strict=False):
            if low != high:
                raise UserError(f"the processes of this run differ in {name}: {remedy}")


def _kind(values: Tensor) -> str:
    return "sums" if values.is_floating_point() else "counts"


class _Gathered(torch.autograd.Function):
    """The rows of all parts; their gradients are summed over the processes that used them."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, here: World) -> Tensor:
        cut = here.cut
        assert cut is not None
        ctx.here, ctx.cut = here, cut
        rows = part.new_zeros(cut.whole, *part.shape[1:])
        rows[cut.start : cut.stop] = part
        return here.sum(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.here.sum(grad)[ctx.cut.start : ctx.cut.stop], None
