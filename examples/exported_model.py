"""A learner as one file that PyTorch alone can use, and how photos are read for it."""

import json
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps

from classgrad import Learner
from classgrad.learner.export import export

COLOURS = {"lime": (60, 180, 50), "plum": (110, 40, 130), "tomato": (210, 40, 30)}


def read_photo(path: str, size: int) -> Image.Image:
    """Read a photo as a learner does, without classgrad."""
    with Image.open(path) as file:
        whole = file.size
        drafted = file.draft(None, (2 * size, 2 * size))
        if drafted is not None and file.size != whole:  # a JPEG decoded at 1/2, 1/4 or 1/8
            small = file.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, drafted[1])
            return ImageOps.exif_transpose(small)
        image = ImageOps.exif_transpose(file)
        if image.has_transparency_data:
            layer = image.convert("RGBA")
            image = Image.new("RGB", layer.size, "white")
            image.paste(layer, mask=layer)
        return image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)


def draw_photos(root: str, count: int, rng: random.Random) -> None:
    """Draw so many photos of every fruit: ROOT/class/number.jpg."""
    for name, colour in COLOURS.items():
        folder = Path(root, name)
        folder.mkdir(parents=True)
        for number in range(count):
            image = Image.new("RGB", (640, 480), (rng.randrange(90, 200),) * 3)
            left, top, width = rng.randrange(300), rng.randrange(150), rng.randrange(160, 300)
            ImageDraw.Draw(image).ellipse((left, top, left + width, top + width), fill=colour)
            image.save(folder / f"{number}.jpg")


def main() -> None:
    """Learn three fruits, export that, and predict with the file."""
    rng = random.Random(1)
    draw_photos("photos", 8, rng)
    draw_photos("new", 1, rng)
    learner = Learner()
    learner.learn("fruit", "photos")
    export(learner, "fruit.pt2")

    paths = [f"new/{name}/0.jpg" for name in COLOURS]
    for one in learner.predict(paths, unknown=0.05):
        name = one.name if one.known else "none of these"
        print(f"with classgrad: {name}, {one.probability:.2f}")

    photos = np.stack([np.asarray(read_photo(path, learner.size)) for path in paths])
    images = torch.from_numpy(photos).permute(0, 3, 1, 2)  # uint8 (n, 3, size, size)
    about = {"classgrad.json": ""}
    model = torch.export.load("fruit.pt2", extra_files=about).module()
    names = json.loads(about["classgrad.json"])["classes"]
    said = model(images)
    for row, p_value in zip(said["probabilities"], said["p_values"], strict=True):
        name = names[row.argmax()] if p_value > 0.05 else "none of these"
        print(f"with PyTorch alone: {name}, {row.max():.2f}")


if __name__ == "__main__":
    main()
