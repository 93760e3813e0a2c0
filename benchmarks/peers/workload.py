"""What is measured: the tasks, the sizes, and the network as plain PyTorch."""

import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from benchmarks.smooth import smooth_images

CLASSES = 10  # of each task
IMAGES = (320, 2000)  # of the first task, which fills memories and is not timed, and of the second
MEAN, DEVIATION = 0.5, 0.2  # of the images
BATCH = 64
EPOCHS = 1
RATE, MOMENTUM = 0.01, 0.9  # of SGD
MEMORY = (
    64  # images of the first task in every step of ER, A-GEM and GEM; all that the last two keep
)
ER_MEMORY = 2000  # large enough that a reservoir still has so many of the first task at the end
MARGIN = 0.5  # GEM
EWC_STRENGTH, SI_STRENGTH = 250.0, 0.1
LWF_STRENGTH, LWF_TEMPERATURE = 1.0, 2.0


def random_tasks() -> list[tuple[Tensor, Tensor]]:
    """Return random images (uint8, n x 3 x 32 x 32) and labels of both tasks."""
    return [
        (smooth_images(count, seed), torch.arange(count) % CLASSES)
        for seed, count in enumerate(IMAGES)
    ]


def normalised(images: Tensor) -> Tensor:
    """Return images as floats, with mean 0 and deviation 1."""
    return (images / 255 - MEAN) / DEVIATION


def alexnet5() -> nn.Sequential:
    """Return the trunk of AlexNet-5 as one would write it in PyTorch: images to 2048 numbers."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 3
    for index, (width, kernel, drop) in enumerate([(64, 4, 0.2), (128, 3, 0.2), (256, 2, 0.5)], 1):
        layers[f"conv{index}"] = nn.Conv2d(channels, width, kernel, bias=False)
        layers[f"bn{index}"] = nn.BatchNorm2d(width)
        layers[f"relu{index}"] = nn.ReLU()
        layers[f"drop{index}"] = nn.Dropout(drop)
        layers[f"pool{index}"] = nn.MaxPool2d(2)
        channels = width
    layers["flat"] = nn.Flatten()
    for index, size in enumerate([1024, 2048], 1):
        layers[f"fc{index}"] = nn.Linear(size, 2048, bias=False)
        layers[f"bn{3 + index}"] = nn.BatchNorm1d(2048)
        layers[f"relu{3 + index}"] = nn.ReLU()
        layers[f"drop{3 + index}"] = nn.Dropout(0.5)
    return nn.Sequential(layers)


def serve(versions: Mapping[str, str], measure: Callable[[str], dict[str, float]]) -> None:
    """Answer every line of the standard input, the name of a method, with a line of JSON.

    The first answer, to nothing, has the versions. Whatever else is printed goes to the standard
    error.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(1)
    print(json.dumps(dict(versions)), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(line.strip())), file=answers, flush=True)
