"""The processes of a run, which part of the work each does, and what they send to each other.

Every process has all data and draws the same random numbers. In training each works on its own
shard of every batch, and what is computed of shards is put together: gradients are averaged,
statistics of BatchNorm and Gram matrices are sums over processes. Elsewhere whole batches take
turns among the processes. With one process every call is a no-op.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn

from classgrad.distributed.speaker import Speaker
from classgrad.errors import UserError, shown
from classgrad.networks.shard import Shard

T = TypeVar("T")

# gloo raises plain RuntimeErrors. One with any of these in it means that a process is gone.
PROCESS_LOST = (
    "connection",  # "Connection closed by peer", "Read error ...: Connection reset by peer"
    "timed out",  # "Timed out waiting 3000ms for recv operation to complete"
    "broken pipe",  # "writev ...: Broken pipe"
)


class World:
    """The processes of a run: this is number `process_index` of `size`."""

    def __init__(
        self, process_index: int = 0, size: int = 1, store: distributed.Store | None = None
    ) -> None:
        self.process_index, self.size = process_index, size
        self.speaker = Speaker(process_index, size, store)
        self.shard: Shard | None = None  # of the current batch, while it is split
        # Bytes this process has given to others, each counted once: "sums" of what was computed,
        # what one "handed" to all, and "counts", whole numbers with which they agree.
        self.sent: Counter[str] = Counter()

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.process_index == 0

    # Which part of the work each does.

    def take_turns(self, items: Iterable[T]) -> Iterator[T]:
        """Yield what this process does of items that take turns among processes.

        >>> list(World(1, 3).take_turns(range(8)))
        [1, 4, 7]
        """
        return islice(items, self.process_index, None, self.size)

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

    def shard_of(self, count: int) -> Shard:
        """Return this process's shard of a batch of so many samples: they differ by one at most.

        A batch with fewer samples than there are processes stays whole, and each has all of it.

        >>> [World(index, 3).shard_of(8).part for index in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
        """
        if not 1 < self.size <= count:
            return Shard(count, 0, count)
        least, more = divmod(count, self.size)
        start = self.process_index * least + min(self.process_index, more)
        stop = start + least + (self.process_index < more)
        return Shard(count, start, stop, self.size, self.sum)

    @contextmanager
    def sharding(self, count: int) -> Iterator[Shard]:
        """Split a batch of so many samples in the block; yield this process's shard."""
        before, shard = self.shard, self.shard_of(count)
        self.shard = None if shard.is_whole else shard
        try:
            yield shard
        finally:
            self.shard = before

    def most_rows(self, count: int) -> int:
        """Return about how many rows a shard has: the same for all, where this has `count`."""
        return count if self.shard is None else -(-self.shard.of_whole(count) // self.size)

    # What they send to each other.

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over processes."""
        return self._sent(_kind(values), values, distributed.all_reduce)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over processes."""
        return values if self.size == 1 else self.sum(values) / self.size

    def sum_on_main_process(self, values: Tensor) -> Tensor:
        """Return the sum over processes in the main one; what others get is worth nothing."""
        return self._sent(_kind(values), values, lambda total: distributed.reduce(total, 0))

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Let the gradients of these parameters, where they have one, be the means over processes.

        All go in one message, so steps in which some parameters have no gradient are as any other.
        """
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self._send("sums", flat, distributed.all_reduce)
        parts = flat.div_(self.size).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view(gradient.shape))

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
        rows[self.process_index] = values
        return self.sum(rows)

    def broadcast(self, values: Tensor) -> Tensor:
        """Return what the main process has; the others have values of the same shape."""
        return self._sent("handed", values, lambda found: distributed.broadcast(found, 0))

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Let these hold what the main process has."""
        if self.size > 1:
            for values in tensors:
                values.copy_(self.broadcast(values))

    def broadcast_rows(self, find: Callable[[], Tensor], like: Tensor) -> Tensor:
        """Return rows that the main process finds while the others wait; `like` has one shape."""
        if self.size == 1:
            return find()
        rows = find() if self.is_main_process else like[:0]
        count = self.largest([len(rows)])[0]
        if not self.is_main_process:
            rows = rows.new_empty(count, *rows.shape[1:])
        return self.broadcast(rows)

    def broadcast_bytes(self, content: bytes) -> bytes:
        """Return what the main process has, of any length."""
        return self._bytes_from(0, content)

    def _bytes_from(self, process_index: int, content: bytes) -> bytes:
        """Return what one process has, of any length."""
        if self.size == 1:
            return content

        def given(values: Tensor) -> Tensor:
            return self._sent(
                "handed", values, lambda found: distributed.broadcast(found, process_index)
            )

        length = int(given(torch.tensor(len(content))))
        found = torch.zeros(length, dtype=torch.uint8)
        if self.process_index == process_index and content:
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
        number = self.largest([0 if error is None else self.process_index + 1])[0]
        if number:
            raise UserError(self._bytes_from(number - 1, str(error).encode()).decode())

    def on_main_process(self, work: Callable[[], object]) -> None:
        """Let the main process do something while the others wait; an error is that of all."""
        error = None
        if self.is_main_process:
            try:
                work()
            except UserError as found:
                error = found
        if self.any(error is not None):
            raise error or UserError("the first process of the run cannot go on")

    def refuse_differences(
        self, values: Mapping[str, object], remedy: str = "start all of them with the same"
    ) -> None:
        """Refuse to continue where processes differ in some of these."""
        if self.size == 1:
            return
        found = [hashlib.blake2b(repr(v).encode(), digest_size=7) for v in values.values()]
        numbers = [int.from_bytes(one.digest()) for one in found]
        highest = self.largest([*numbers, *(-number for number in numbers)])
        lowest = [-number for number in highest[len(numbers) :]]
        for name, low, high in zip(values, lowest, highest, strict=False):
            if low != high:
                raise UserError(f"the processes of this run differ in {name}: {remedy}")

    def _sent(self, kind: str, values: Tensor, work: Callable[[Tensor], object]) -> Tensor:
        """Return what becomes of a copy of these values when all processes give theirs."""
        if self.size == 1:
            return values
        found = values.detach().clone(memory_format=torch.contiguous_format)
        self._send(kind, found, work)
        return found

    def _send(self, kind: str, values: Tensor, work: Callable[[Tensor], object]) -> None:
        """Let all processes give their values; say in one line if another process is gone."""
        self.sent[kind] += values.nbytes
        try:
            work(values)
        except RuntimeError as error:
            if not any(words in str(error).lower() for words in PROCESS_LOST):
                raise
            raise UserError(
                f"another process of this run has ended ({shown(error)}): resume from what was "
                "saved last",
                hint="resume",
            ) from None


def _kind(values: Tensor) -> str:
    return "sums" if values.is_floating_point() else "counts"
