"""What one process does alone, how batches are split, and the message when a process is gone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from classgrad import distributed
from classgrad.distributed import process_device, world
from classgrad.distributed.world import World
from classgrad.errors import UserError

# As gloo of PyTorch says them when a process is killed while others wait, or while it sends; when
# a process is too slow; and when what it would be sent cannot be written.
LOST = (
    "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9634. This is "
    "typically caused by a remote worker crashing. Check the logs of the remote worker.",
    "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:54673: Connection reset by peer. This "
    "is typically caused by a remote worker hanging or bugs in the application.",
    "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to "
    "complete",
    "[gloo/transport/tcp/pair.cc:460] writev [10.0.0.5]:5712: Broken pipe",
    "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or "
    "crash?",
)


def failing(message):
    def work(values):
        raise RuntimeError(message)

    return work


@pytest.mark.parametrize("message", LOST)
def test_a_process_that_is_gone_is_said_in_one_line(message):
    with pytest.raises(UserError, match="another process of this run has ended") as result:
        World(0, 2)._exchanged("sums", torch.ones(3), failing(message))
    assert message in str(result.value)
    assert "\n" not in str(result.value)


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        World(0, 2)._exchanged("sums", torch.ones(3), failing("Invalid scalar type"))


@given(count=st.integers(0, 70), size=st.integers(1, 9))
def test_shards_are_the_batch_in_order(count, size):
    shards = [World(index, size).shard_of(count) for index in range(size)]
    if count < size or size == 1:
        assert all(shard.is_whole and shard.part == slice(0, count) for shard in shards)
        return
    assert [i for shard in shards for i in range(count)[shard.part]] == list(range(count))
    sizes = [shard.size for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    assert sum(shard.weight for shard in shards) == pytest.approx(size)


def test_a_batch_inside_another_is_split_for_itself():
    here = World(1, 3)
    with here.sharding(9) as outer:
        assert here.shard is outer
        with here.sharding(2) as inner:  # too few for three
            assert inner.is_whole
            assert here.shard is None
            assert here.most_rows(5) == 5
        assert here.shard is outer
        assert here.most_rows(outer.size) == 3
    assert here.shard is None


def test_with_one_process_every_call_is_a_no_op():
    here = world()
    x = torch.rand(4, 2, generator=torch.Generator(), requires_grad=True)
    same = (here.sum, here.mean, here.sum_on_main_process, here.broadcast)
    assert all(call(x) is x for call in same)
    assert here.broadcast_rows(lambda: x, x) is x
    assert here.broadcast_bytes(b"abc") == b"abc"
    shard = here.shard_of(4)
    assert shard.gather(x) is x
    assert shard.weighted(x) is x
    assert shard.weight == 1.0
    assert list(here.take_turns(range(3))) == list(here.in_step(range(3))) == [0, 1, 2]
    parameter = torch.nn.Parameter(torch.zeros(2))
    gradient = parameter.grad = torch.tensor([1.0, 2.0])
    here.average_gradients([parameter])
    assert parameter.grad is gradient
    assert gradient.tolist() == [1.0, 2.0]
    here.refuse_differences({"the settings": 1})
    assert not here.sent


def test_an_error_on_the_main_process_is_raised():
    def work():
        raise UserError("the disk is full")

    with pytest.raises(UserError, match="the disk is full"):
        world().on_main_process(work)


def test_each_of_several_processes_has_a_device_of_its_own(monkeypatch):
    used = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: used.append(device))
    monkeypatch.setattr(distributed, "_world", World(3, 4))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert process_device("cuda") == torch.device("cuda:1")
    assert used == [torch.device("cuda:1")]
    assert process_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match="device 'cuda:1' is for one process: give cpu, or cuda"):
        process_device("cuda:1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(UserError, match="3 processes for 2 GPUs on this machine"):
        process_device("cuda")
