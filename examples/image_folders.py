"""From folders of pictures to predictions: two tasks, a state on disk, and what a picture shows."""

import random
from pathlib import Path

from PIL import Image, ImageDraw

from classgrad import CGP, Learner, Training, leakage
from classgrad.learner.drift import Reference

# Tasks, their classes, and the colour of each.
TASKS = {
    "fruit": {"lime": (60, 180, 50), "tomato": (210, 40, 30)},
    "more fruit": {"banana": (240, 220, 60), "plum": (110, 40, 130)},
}


def picture(name: str, colour: tuple[int, int, int], rng: random.Random) -> Image.Image:
    """Draw a fruit of any size anywhere on a grey picture."""
    image = Image.new("RGB", (48, 40), (rng.randrange(90, 200),) * 3)
    width = rng.randrange(16, 26)
    height = width // 3 if name == "banana" else width
    left, top = rng.randrange(48 - width), rng.randrange(40 - height)
    shade = tuple(max(0, value + rng.randrange(-40, 15)) for value in colour)
    ImageDraw.Draw(image).ellipse((left, top, left + width, top + height), fill=shade)
    return image


def draw_folders(root: str, count: int, rng: random.Random) -> None:
    """Draw so many pictures of every class: ROOT/task/class/number.png."""
    for task, classes in TASKS.items():
        for name, colour in classes.items():
            folder = Path(root, task, name)
            folder.mkdir(parents=True)
            for number in range(count):
                picture(name, colour, rng).save(folder / f"{number}.png")


def main() -> None:
    """Learn two tasks, each as if in another month, and predict in between."""
    rng = random.Random(1)
    draw_folders("pictures", 40, rng)
    draw_folders("new", 5, rng)

    training = Training(epochs=8, batch_size=8, learning_rate=0.02)
    learner = Learner(network="lenet5", method=CGP(), size=16, training=training)
    learner.learn("fruit", "pictures/fruit", checkpoint_dir="state")
    for one in learner.predict(["new/fruit/lime/0.png", "new/fruit/tomato/0.png"]):
        print(f"{one.name}, {one.probability:.2f}")
    learner.reference("new/fruit/tomato", "fruit").save("tomatoes.safetensors")
    serving = Learner.load("state").frozen()

    learner = Learner.load("state")  # next month, in another process
    learner.learn("more fruit", "pictures/more fruit", checkpoint_dir="state")
    if serving.changed():  # another process has learnt a task since
        serving = Learner.load("state").frozen()
    print(f"served: {', '.join(task.name for task in serving.tasks)}")
    for folder in ("fruit/lime", "fruit/tomato", "more fruit/banana", "more fruit/plum"):
        predictions = learner.predict(f"new/{folder}", by="prototypes")
        print(f"new/{folder}: {', '.join(one.name for one in predictions)}")
    for layer in learner.forecast():
        print(f"layer {layer.name}: {layer.rank} of {layer.dimension} directions in use")
    print(leakage(learner, Reference.load("tomatoes.safetensors")))


if __name__ == "__main__":
    main()
