"""What a learner promises to those who rely on it, measured on photos of CIFAR-100.

`python -m benchmarks.trust` needs CIFAR-100 in the data directory and writes results/trust.json:

- threads: predictions from several threads at once, and from a frozen copy while the learner
  learns, beside the same predictions alone.
- printed: the balanced accuracy that `learn` prints beside that on test photos, for classes of very
  different sizes, and for shots of the same scenes.
- exported: predictions of exported files beside those of the learner.
- files: time and memory for large photos, and a batch with a damaged file.
- forgetting: what attacks find in the state of a class that was forgotten (see `remains`).

`python -m benchmarks.trust threads` repeats one of them and keeps the others.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib.util import find_spec
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from benchmarks.machine import describe_machine
from benchmarks.memory import peak_bytes, resident_bytes
from benchmarks.photos import BATCH, class_order, of_classes, photos, pictures
from benchmarks.remains import default_learner, forgetting
from classgrad import Learner, Training, UserError
from classgrad.learner.export import METADATA, export
from classgrad.prediction.balanced import balanced_accuracy
from classgrad.prediction.calibration import Prediction
from classgrad.tasks import Split

RESULTS = Path(__file__).parent.parent / "results" / "trust.json"
TASKS, CLASSES, PER_CLASS = 3, 4, 20  # classes of each task
ASKED = 50  # photos that each thread asks for
DRAWS = 3  # of the classes whose printed accuracy is compared
SIZES = (500, 500, 5, 5)  # photos of each class
SCENES, SHOTS = 3, 5  # of each of four classes
TEST_PHOTOS = 50  # of each class
EXPORTED = 200  # photos
FORMATS = (".pt2", ".onnx") if find_spec("onnxruntime") and find_spec("onnx") else (".pt2",)
LARGE = {12: (4000, 3000), 48: (8000, 6000), 200: (16320, 12250)}  # by megapixels
REPEATS = 5
FILES = 100

R = TypeVar("R")


def main(parts: Sequence[str]) -> None:
    """Measure some parts, or all, and write the figures."""
    train, test = photos("train"), photos("test")
    for name in parts or PARTS:
        machine = describe_machine([], quick=False) | {"command": "python -m benchmarks.trust"}
        begun = time.perf_counter()
        figures = PARTS[name](train, test)
        # Read now: other parts may be measured at the same time.
        content = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        content[name] = {**machine, "seconds": time.perf_counter() - begun, "figures": figures}
        print(name, json.dumps(figures), flush=True)
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def own_layers_learner() -> Learner:
    """Return a new learner whose network has norms of its own for each task."""
    training = Training(epochs=1, batch_size=32, learning_rate=0.01)
    return Learner(network="resnet18", network_options={"width": 8}, training=training)


LEARNERS = {"default": default_learner, "own layers": own_layers_learner}


def learnt(make: Callable[[], Learner], train: Split) -> Learner:
    """Return a learner of several tasks."""
    learner = make()
    for number in range(TASKS):
        learner.learn(f"task {number}", task_data(learner, train, number))
    return learner


def task_data(learner: Learner, train: Split, number: int) -> tuple[Tensor, list[str]]:
    """Return photos of the classes of a task, and the names of their classes."""
    classes = class_order()[CLASSES * number : CLASSES * (number + 1)]
    images, names = of_classes(train, classes, PER_CLASS)
    return pictures(images, learner.size), names


def threads(train: Split, test: Split) -> dict[str, Any]:
    """Count the predictions that differ from those of one thread alone."""
    figures = {}
    for name, make in LEARNERS.items():
        learner = learnt(make, train)
        images = pictures(test.images[:ASKED], learner.size)
        figures[name] = {
            "with_task": together(learner, images, [task.name for task in learner.tasks]),
            "without_task": together(learner, images, [None] * TASKS),
            "while_learning": while_learning(
                learner, images, task_data(learner, train, TASKS), f"task {TASKS}"
            ),
        }
    return figures


def together(learner: Learner, images: Tensor, tasks: Sequence[str | None]) -> dict[str, int]:
    """Predict for one task in each thread; count what differs from the same alone."""

    def predicted(task: str | None) -> list[Prediction]:
        return [learner.predict(image, task)[0] for image in images]

    alone = {task: predicted(task) for task in dict.fromkeys(tasks)}
    with ThreadPoolExecutor(len(tasks)) as pool:
        found = list(pool.map(predicted, tasks))
    pairs = [
        pair
        for task, of_thread in zip(tasks, found, strict=True)
        for pair in zip(alone[task], of_thread, strict=True)
    ]
    return {"answers": len(pairs), "differing": sum(one != other for one, other in pairs)}


def while_learning(
    learner: Learner, images: Tensor, data: tuple[Tensor, list[str]], name: str
) -> dict[str, int]:
    """Predict by a frozen copy while the learner learns; count what differs from before.

    Counted as well is how often the learner itself answered or refused to, while it learnt.
    """
    frozen = learner.frozen()
    before = [frozen.predict(image)[0] for image in images]
    counts = {"answers": 0, "differing": 0, "refused": 0}
    with ThreadPoolExecutor(1) as pool:
        learning = pool.submit(learner.learn, name, data)
        while not learning.done():
            place = counts["answers"] % len(images)
            counts["differing"] += frozen.predict(images[place])[0] != before[place]
            counts["answers"] += 1
            try:
                learner.predict(images[place])
            except UserError:
                counts["refused"] += 1
        learning.result()
    return counts


def printed(train: Split, test: Split) -> dict[str, Any]:
    """Compare printed accuracies with those on test photos, for several draws of four classes."""
    count = len(SIZES)
    figures: dict[str, Any] = {"sizes": [], "scenes": []}
    for draw in range(DRAWS):
        classes = class_order()[count * draw : count * (draw + 1)]
        parts = [
            of_classes(train, [number], size) for number, size in zip(classes, SIZES, strict=True)
        ]
        learner = default_learner()
        images = pictures(torch.cat([part for part, _ in parts]), learner.size)
        names = [name for _, part in parts for name in part]
        learner.learn("photos", (images, names))
        figures["sizes"].append(beside_test(learner, test, classes))

        scenes, names = of_classes(train, classes, SCENES)
        learner = default_learner()
        taken = torch.cat([shots(scene, learner.size, draw) for scene in scenes])
        learner.learn("shots", (taken, [name for name in names for _ in range(SHOTS)]))
        figures["scenes"].append(beside_test(learner, test, classes))
    return figures


def beside_test(learner: Learner, test: Split, classes: Sequence[int]) -> dict[str, Any]:
    """Return the accuracy that `learn` printed and that on test photos, in per cent."""
    images, names = of_classes(test, classes, TEST_PHOTOS)
    answers = learner.predict(pictures(images, learner.size), batch_size=BATCH)
    correct = torch.tensor([one.name == name for one, name in zip(answers, names, strict=True)])
    found = balanced_accuracy(torch.tensor([int(name) for name in names]), correct)
    said = learner.tasks[-1].task_free
    keys = ("accuracy", "low", "high", "samples")
    return {
        "printed": said and {key: said[key] for key in keys},
        "printed_recalls": learner.tasks[-1].recalls,
        "accuracy": found.accuracy,
        "recalls": {str(number): recall for number, recall in found.recalls.items()},
    }


def shots(scene: Tensor, size: int, seed: int) -> Tensor:
    """Return shots of one scene: moved, cropped, darker or lighter, and compressed again."""
    rng = torch.Generator().manual_seed(seed)
    image = Image.fromarray(scene.permute(1, 2, 0).numpy())
    image = image.resize((size, size), Image.Resampling.BICUBIC)
    taken = []
    for _ in range(SHOTS):
        inside = 1 - 0.08 * float(torch.rand(1, generator=rng))
        left, top = ((1 - inside) * size * torch.rand(2, generator=rng)).tolist()
        box = (left, top, left + inside * size, top + inside * size)
        shot = image.resize((size, size), Image.Resampling.BILINEAR, box)
        light = 0.85 + 0.3 * float(torch.rand(1, generator=rng))
        file = BytesIO()
        ImageEnhance.Brightness(shot).enhance(light).save(file, "JPEG", quality=85)
        pixels = torch.frombuffer(bytearray(Image.open(file).tobytes()), dtype=torch.uint8)
        taken.append(pixels.reshape(size, size, 3).permute(2, 0, 1))
    return torch.stack(taken)


def exported(train: Split, test: Split) -> dict[str, Any]:
    """Count the photos that get another class from an exported file than from the learner."""
    learner = learnt(default_learner, train)
    images = pictures(test.images[:EXPORTED], learner.size)
    answers = [learner.predict(image)[0] for image in images]
    figures = {}
    with tempfile.TemporaryDirectory() as place:
        for suffix in FORMATS:
            path = Path(place) / f"learner{suffix}"
            export(learner, path)
            names, rows = run(path, images)
            found = [names[number] for number in rows.argmax(1).tolist()]
            moved = [
                abs(guess.probability - float(row[names.index((guess.name, guess.task))]))
                for answer, row in zip(answers, rows, strict=True)
                for guess in answer.ranking
            ]
            other = [(a.name, a.task) != name for a, name in zip(answers, found, strict=True)]
            figures[suffix] = {
                "photos": len(other),
                "differing": sum(other),
                "probabilities_differ_by": max(moved),
            }
    return figures


def run(path: Path, images: Tensor) -> tuple[list[tuple[str, str]], Tensor]:
    """Run an exported file; return names and tasks of its classes, and the probabilities."""
    if path.suffix == ".pt2":
        about = {METADATA: ""}
        model = torch.export.load(path, extra_files=about).module()
        rows = model(images)["probabilities"]
        described = json.loads(about[METADATA])
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (found,) = session.run(["probabilities"], {"images": images.numpy()})
        rows = torch.from_numpy(found)
        described = json.loads(session.get_modelmeta().custom_metadata_map[METADATA])
    return list(zip(described["classes"], described["tasks"], strict=True)), rows


def files(train: Split, test: Split) -> dict[str, Any]:
    """Predict large photos, each size in a process of its own, and a batch with a damaged file."""
    learner = learnt(default_learner, train)
    figures: dict[str, Any] = {"large": {}}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        learner.save(folder / "state")
        write_photo(folder / "small.jpg", test.images[0], (160, 120))
        for megapixels, size in LARGE.items():
            write_photo(folder / "large.jpg", test.images[0], size)
            found = in_new_process(large_photo, folder, "large.jpg")
            found["file_megabytes"] = (folder / "large.jpg").stat().st_size / 1e6
            figures["large"][str(megapixels)] = found
        batch = [folder / f"{number:03}.jpg" for number in range(FILES)]
        for file, image in zip(batch, test.images[:FILES], strict=True):
            write_photo(file, image, (160, 120))
        bad = batch[FILES // 2]
        bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
        alone = learner.predict([file for file in batch if file != bad])
        rows = learner.predict(batch, report_bad=True)
    answers = [row for row in rows if row.ranking]
    figures["batch"] = {
        "files": FILES,
        "damaged": 1,
        "rows": len(rows),
        "answers": len(answers),
        "differing": sum(one != other for one, other in zip(alone, answers, strict=True)),
        "reasons": sum(row.error is not None for row in rows),
    }
    return figures


def write_photo(path: Path, image: Tensor, size: tuple[int, int]) -> None:
    """Write a photo of a size as JPEG, with noise as cameras have it."""
    photo = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(size, Image.Resampling.BICUBIC)
    noise = Image.effect_noise(size, 50).convert("RGB")
    Image.blend(photo, noise, 0.1).save(path, quality=90)


def in_new_process(function: Callable[..., R], *arguments: Any) -> R:
    """Call a function in a process of its own: peaks of memory of this one have other causes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def large_photo(folder: Path, name: str) -> dict[str, float]:
    """Predict a photo; return the time, and the bytes that it takes on top of the learner."""
    learner = Learner.load(folder / "state")
    for _ in range(REPEATS):
        learner.predict(folder / "small.jpg")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # a new peak
    before, times = resident_bytes(), []
    for _ in range(REPEATS):
        begun = time.perf_counter(), time.process_time()
        learner.predict(folder / name)
        times.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    passed, busy = (1000 * min(column) for column in zip(*times, strict=True))
    return {
        "milliseconds": passed,
        "processor_milliseconds": busy,  # the same with one thread and nothing else to do
        "peak_megabytes": (peak_bytes() - before) / 1e6,
        "learner_megabytes": before / 1e6,
    }


PARTS = {
    "threads": threads,
    "printed": printed,
    "exported": exported,
    "files": files,
    "forgetting": forgetting,
}

if __name__ == "__main__":
    main(sys.argv[1:])
