import numpy as np
import pytest
import torch
from PIL import Image

from classgrad import benchmarks, run
from classgrad.errors import UserError
from classgrad.runs.spec import make_plan


def picture(path, colour, size=(20, 12), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path, **options)


@pytest.fixture
def photos(tmp_path):
    colours = {
        "a/red": (255, 0, 0),
        "a/blue": (0, 0, 255),
        "b/green": (0, 255, 0),
        "b/grey": 3 * (90,),
    }
    for place, colour in colours.items():
        for number in range(6):
            picture(tmp_path / place / f"{number}.png", colour)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes.txt").write_text("not a task")
    return tmp_path


def test_folders_become_tasks_and_classes(photos):
    stream = benchmarks.load(f"folder:{photos}", image_size=16)
    assert [task.name for task in stream] == ["a", "b"]
    assert stream[0].class_names == ("a/blue", "a/red")
    assert stream.input_shape == (3, 16, 16)
    for task in stream:
        assert torch.bincount(stream.test(task.id).labels).tolist() == [1, 1]
        assert len(task.train) + len(task.valid) == 10
    blue = stream[0].train.images[stream[0].train.labels == 0][0]
    assert blue[:, 0, 0].tolist() == [0, 0, 255]


def test_every_kind_of_image_is_read_as_colour(photos):
    rows = np.zeros((4, 8, 3), dtype=np.uint8)
    rows[:, :4] = 255
    upright = Image.fromarray(rows)
    exif = upright.getexif()
    exif[0x0112] = 3  # turned by half: what is left belongs right
    place = photos / "a" / "red"
    upright.save(place / "turned.png", exif=exif)
    picture(place / "palette.gif", (255, 0, 0), mode="P")
    picture(place / "clear.png", (255, 0, 0), mode="RGBA")
    picture(place / "grey.jpg", (128, 128, 128), mode="L")
    stream = benchmarks.folder(photos, image_size=8, test_fraction=0.01, valid_fraction=0)
    images = stream[0].train.images[stream[0].train.labels == 1]
    tests = stream.test(0).images
    white = [i for i in torch.cat([images, tests]) if i[0].float().std() > 50]
    assert len(white) == 1
    assert white[0][:, 4, 0].tolist() == [0, 0, 0]
    assert white[0][:, 4, 7].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: (p / "b" / "grey" / "x.png").write_bytes(b"no image"), "x.png' is not an image"),
        (lambda p: (p / "b" / "empty").mkdir(), "empty' holds no picture"),
        (lambda p: picture(p / "b" / "one" / "x.png", "red"), "one' holds 1 image.* at least 2"),
        (lambda p: (p / "c").mkdir(), "c' holds no folder"),
    ],
)
def test_bad_folders_are_refused_by_name(photos, spoil, message):
    spoil(photos)
    with pytest.raises(UserError, match=message) as caught:
        benchmarks.load(f"folder:{photos}")
    assert "\n" not in str(caught.value)


def refused(photos, message):
    with pytest.raises(UserError, match=message) as caught:
        benchmarks.load(f"folder:{photos}")
    assert str(caught.value).isprintable()


def test_a_picture_that_is_a_program_is_refused(photos):
    Image.new("RGB", (4, 4)).save(photos / "a" / "red" / "x.png", "EPS")
    refused(photos, r"x.png' .* cannot identify")


def test_a_small_file_with_a_huge_picture_is_refused(photos):
    Image.new("1", (5101, 10_000)).save(photos / "a" / "red" / "x.png")
    refused(photos, "x.png' .* 5101 x 10000 pixels are too many")


def test_a_picture_that_pillow_warns_of_is_read_without_a_warning(photos):
    clear = {"transparency": bytes([0, 128])}
    picture(photos / "a" / "red" / "x.png", (255, 0, 0), mode="P", **clear)
    assert len(benchmarks.load(f"folder:{photos}")) == 2


def test_no_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        benchmarks.load(f"folder:{tmp_path / 'none'}")
    with pytest.raises(UserError, match="needs a path"):
        benchmarks.load("folder")


def test_runs_by_name_and_has_a_plain_folder_for_its_record(photos, tmp_path):
    name = f"folder:{photos}"
    values = {"epochs": 1, "image_size": 8, "contrast": 0}
    plan = make_plan(name, "cgp", network="mlp", values=values)
    assert plan.folder_name().startswith("folder-cgp-seed1-")
    record = run(name, "cgp", network="mlp", values=values)
    assert record.complete
    assert record.benchmark == name
