from dataclasses import replace

import pytest
import torch

from classgrad.errors import UserError
from classgrad.tasks import Split, Task, TaskStream
from streams import blobs

IMAGES = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
LABELS = torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES, LABELS[:3], "4 images but 3 labels"),
        (IMAGES.to(torch.int32), LABELS, "images cannot be of type torch.int32"),
        (IMAGES, LABELS.float(), "labels are torch.float32"),
        (IMAGES, LABELS[:, None], r"of shape \(4, 1\)"),
    ],
)
def test_split_refuses(images, labels, message):
    with pytest.raises(UserError, match=message):
        Split(images, labels)


def test_bytes_become_floats_between_0_and_1():
    split = Split(torch.tensor([[0, 128, 255]], dtype=torch.uint8), torch.tensor([0]))
    assert split.unit_images(slice(None))[0].tolist() == pytest.approx([0, 128 / 255, 1])
    assert split.unit_images(slice(None), torch.float64).dtype == torch.float64


def test_task_refuses_a_class_without_sample_and_labels_out_of_range():
    valid = Split(IMAGES[:0], LABELS[:0])
    with pytest.raises(UserError, match="class 'c' of task 't' has no training sample"):
        Task(0, "t", ("a", "b", "c"), Split(IMAGES, LABELS), valid)
    with pytest.raises(UserError, match=r"label 1 of task 't' is outside 0\.\.0"):
        Task(0, "t", ("a",), Split(IMAGES, LABELS), valid)
    with pytest.raises(UserError, match="label -1"):
        Task(0, "t", ("a", "b"), Split(IMAGES, LABELS - 1), valid)


def test_stream_is_a_sequence():
    stream = blobs(tasks=3)
    assert len(stream) == 3
    assert [task.id for task in stream] == [0, 1, 2]
    assert stream[-1].name == "blobs 2"
    assert [task.id for task in stream[1:]] == [1, 2]
    assert len(stream.class_names) == 9


def test_stream_refuses_what_does_not_fit():
    stream = blobs(tasks=2)
    with pytest.raises(UserError, match="has no task"):
        TaskStream("none", [], [])
    with pytest.raises(UserError, match="2 tasks but 1 test sets"):
        TaskStream("short", list(stream), [stream.test(0)])
    with pytest.raises(UserError, match="at position 0 has id 1"):
        TaskStream("turned", [stream[1], stream[0]], [stream.test(1), stream.test(0)])


@pytest.mark.parametrize("part", ["training", "validation", "test"])
def test_stream_refuses_images_of_another_shape(part):
    small, large = blobs(tasks=2), blobs(tasks=2, shape=(1, 9, 9))
    second, test = small[1], small.test(1)
    if part == "training":
        second = replace(second, train=large[1].train)
    elif part == "validation":
        second = replace(second, valid=large[1].valid)
    else:
        test = large.test(1)
    message = rf"{part} images of task 'blobs 1' have shape \(1, 9, 9\), .* \(1, 8, 8\)"
    with pytest.raises(UserError, match=message):
        TaskStream("mixed", [small[0], second], [small.test(0), test])
