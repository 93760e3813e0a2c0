"""The processes of a run: how they share the work, and what they send to each other.

Every process has all data and draws the same random numbers. In training each computes its own
shard of every batch, and results are combined: gradients are averaged, statistics of BatchNorm and
Gram matrices are summed over processes. Elsewhere processes take turns with whole batches. With one
process every call is a no-op.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn

from classgrad.errors import UserError, shown
from classgrad.networks.shard import Shard

PATIENCE = timedelta(seconds=3)  # to wait for the main process to print an error


class Speaker:
    """Decides whether process `process_index` of `size` prints; a store connects them."""

    def __init__(self, process_index: int, size: int, store: distributed.Store | None) -> None:
        self.process_index, self.size, self._store = process_index, size, store

    def speaks(self) -> bool:
        """Tell whether this process prints an error: the main process, or one in its place."""
        if self._store is None:  # not connected yet: all processes on a machine fail alike
            alone = os.environ.get("WORLD_SIZE", "1") == "1"
            return alone or os.environ.get("LOCAL_RANK", "0") == "0"
        if self.process_index == 0:
            return True
        try:
            self._store.wait(["said"], PATIENCE)
            self._store.set(f"heard {self.process_index}", "")
        except RuntimeError:
            return self._is_next()
        return False

    def _is_next(self) -> bool:
        """Tell whether this process prints in place of a silent main process: only one does."""
        assert self._store is not None
        try:
            return self._store.add("speakers", 1) == 1
        except RuntimeError:  # the store has died with the main process, or with its machine
            return self.process_index == 1 or os.environ.get("LOCAL_RANK") == "0"

    def spoken(self) -> None:
        """Tell the others that the main process has printed, and wait until they know."""
        if self._store is None or self.process_index > 0:
            return
        try:
            self._store.set("said", "")
            self._store.wait([f"heard {index}" for index in range(1, self.size)], PATIENCE)
        except RuntimeError:
            return  # they are gone


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
        self.shard: Shard | None = None  # of the current batch, while it is sharded
        # Bytes this process has sent: "sums" of floating-point values, "handed" in broadcasts, and
        # "counts" of whole numbers. A value counts once, however many processes receive it.
        self.sent: Counter[str] = Counter()

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.process_index == 0

    # Sharing the work.

    def take_turns(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items of this process, which are every size-th one.

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
        """Return this process's shard of a batch of `count` samples; sizes differ by one at most.

        A batch with fewer samples than processes stays whole, and every process has all of it.

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
        """Shard a batch of `count` samples in the block; yield this process's shard."""
        before, shard = self.shard, self.shard_of(count)
        self.shard = None if shard.is_whole else shard
        try:
            yield shard
        finally:
            self.shard = before

    def most_rows(self, count: int) -> int:
        """Return roughly how many rows a shard has, equal in all processes; this has `count`."""
        return count if self.shard is None else -(-self.shard.of_whole(count) // self.size)

    # Communication.

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over processes."""
        return self._exchanged(_kind(values), values, distributed.all_reduce)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over processes."""
        return values if self.size == 1 else self.sum(values) / self.size

    def sum_on_main_process(self, values: Tensor) -> Tensor:
        """Return the sum over processes in the main one; what others get is undefined."""
        return self._exchanged(_kind(values), values, lambda total: distributed.reduce(total, 0))

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients of these parameters by their means over processes.

        All are sent in one message. Parameters without a gradient are skipped.
        """
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self._exchange("sums", flat, distributed.all_reduce)
        parts = flat.div_(self.size).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view(gradient.shape))

    def max(self, values: Sequence[int]) -> list[int]:
        """Return the maximum over processes of each value."""
        if self.size == 1:
            return list(values)
        own = torch.tensor(values, dtype=torch.int64)
        return self._exchanged(
            "counts", own, lambda buffer: distributed.all_reduce(buffer, distributed.ReduceOp.MAX)
        ).tolist()

    def any(self, value: bool) -> bool:
        """Tell whether a value is true in any process."""
        return bool(self.max([value])[0])

    def gather(self, values: Tensor) -> Tensor:
        """Return the values of all processes, (size, ...)."""
        rows = values.new_zeros(self.size, *values.shape)
        rows[self.process_index] = values
        return self.sum(rows)

    def broadcast(self, values: Tensor) -> Tensor:
        """Return the values of the main process; those of the others must have the same shape."""
        return self._exchanged("handed", values, lambda buffer: distributed.broadcast(buffer, 0))

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of the main process."""
        if self.size > 1:
            for values in tensors:
                values.copy_(self.broadcast(values))

    def broadcast_rows(self, find: Callable[[], Tensor], like: Tensor) -> Tensor:
        """Return the rows that `find` computes in the main process; `like` gives their shape."""
        if self.size == 1:
            return find()
        rows = find() if self.is_main_process else like[:0]
        count = self.max([len(rows)])[0]
        if not self.is_main_process:
            rows = rows.new_empty(count, *rows.shape[1:])
        return self.broadcast(rows)

    def broadcast_bytes(self, content: bytes) -> bytes:
        """Return the bytes of the main process, of any length."""
        return self._bytes_from(0, content)

    def _bytes_from(self, process_index: int, content: bytes) -> bytes:
        """Return the bytes of one process, of any length."""
        if self.size == 1:
            return content

        def broadcast(values: Tensor) -> Tensor:
            return self._exchanged(
                "handed", values, lambda buffer: distributed.broadcast(buffer, process_index)
            )

        length = int(broadcast(torch.tensor(len(content))))
        data = torch.zeros(length, dtype=torch.uint8)
        if self.process_index == process_index and content:
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return broadcast(data).numpy().tobytes()

    @contextmanager
    def errors_shared(self) -> Iterator[None]:
        """Raise a UserError of one process in the block in all of them: its message and hint."""
        if self.size == 1:
            yield
            return
        error = None
        try:
            yield
        except UserError as own_error:
            error = own_error
        number = self.max([0 if error is None else self.process_index + 1])[0]
        if number:
            own = {"message": str(error), "hint": error.hint} if error else {}
            first = json.loads(self._bytes_from(number - 1, json.dumps(own).encode()))
            raise UserError(first["message"], hint=first["hint"])

    def on_main_process(self, work: Callable[[], object]) -> None:
        """Do something in the main process while the others wait; its error stops all of them."""
        error = None
        if self.is_main_process:
            try:
                work()
            except UserError as own_error:
                error = own_error
        if self.any(error is not None):
            raise error or UserError("the main process has failed: see its message")

    def refuse_differences(
        self, values: Mapping[str, object], remedy: str = "start all of them with the same"
    ) -> None:
        """Refuse to continue if processes differ in any of these values."""
        if self.size == 1:
            return
        hashes = [hashlib.blake2b(repr(v).encode(), digest_size=7) for v in values.values()]
        numbers = [int.from_bytes(value.digest()) for value in hashes]
        highest = self.max([*numbers, *(-number for number in numbers)])
        lowest = [-number for number in highest[len(numbers) :]]
        for name, low, high in zip(values, lowest, highest, strict=False):
            if low != high:
                raise UserError(f"the processes of this run differ in {name}: {remedy}")

    def _exchanged(self, kind: str, values: Tensor, work: Callable[[Tensor], object]) -> Tensor:
        """Return the result of a collective operation on a copy of these values."""
        if self.size == 1:
            return values
        buffer = values.detach().clone(memory_format=torch.contiguous_format)
        self._exchange(kind, buffer, work)
        return buffer

    def _exchange(self, kind: str, values: Tensor, work: Callable[[Tensor], object]) -> None:
        """Run a collective operation in place; raise a UserError if another process is gone."""
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


def users_world() -> World:
    """Return the processes of a training that a user has set up with torch.distributed."""
    if not distributed.is_available() or not distributed.is_initialized():
        return World()
    return World(distributed.get_rank(), distributed.get_world_size())
