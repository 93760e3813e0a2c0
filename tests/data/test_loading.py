import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from classgrad.data import DATASETS, SPLITS, cache, data_dir, load
from classgrad.data.check import check
from classgrad.errors import UserError, shown
from data.datafiles import WRITERS, as_release, idx, notmnist


def entries(root):
    return sorted((root / ".cache").glob("*.safetensors"))


@pytest.fixture(params=list(WRITERS))
def written(request, tmp_path):
    WRITERS[request.param](tmp_path)
    return request.param, tmp_path


def same(one, other):
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)
    assert (one.coarse is None) == (other.coarse is None)
    assert one.coarse is None or torch.equal(one.coarse, other.coarse)
    assert one.class_names == other.class_names
    assert one.coarse_names == other.coarse_names
    assert (one.status, one.note) == (other.status, other.note)
    assert one.images.dtype == torch.uint8
    assert one.labels.dtype == torch.int64


def test_the_second_time_comes_from_the_cache(written, monkeypatch):
    name, root = written
    for split in SPLITS:
        first = load(name, root, split)
        same(first, load(name, root, split, cached=False))
        with monkeypatch.context() as patch:
            patch.setattr(f"classgrad.data.{DATASETS[name].format}.decode", None)
            same(first, load(name, root, split))
    assert len(entries(root)) == 2
    assert not list((root / ".cache").glob("*.part"))


def test_the_cache_is_never_stale(written):
    """Same path, size and time with other bytes: only the content tells."""
    name, root = written
    before = load(name, root, "train")
    path = cache_source(name, root)
    status, raw = path.stat(), path.read_bytes()
    changed = bytearray(raw)
    if name == "notmnist":
        changed = (path.parent / path.name.replace("0", "1")).read_bytes()
    elif name == "svhn":
        from datafiles import mat, svhn_tables

        changed = mat(svhn_tables(7, 12))
    else:
        changed[-30] ^= 1
    path.write_bytes(changed)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = load(name, root, "train")
    assert not torch.equal(before.images, after.images)
    same(after, load(name, root, "train", cached=False))
    assert len(entries(root)) == 1
    path.write_bytes(raw)
    same(before, load(name, root, "train"))


def cache_source(name, root):
    return {
        "cifar10": root / "cifar-10-batches-py" / "data_batch_2",
        "cifar100": root / "cifar-100-python" / "train",
        "mnist": root / "MNIST" / "raw" / "train-images-idx3-ubyte",
        "svhn": root / "train_32x32.mat",
        "notmnist": root / "notMNIST" / "Train" / "A" / "TrainA0.png",
    }[name]


def test_a_renamed_file_is_another_source(tmp_path):
    folder = notmnist(tmp_path) / "Train" / "A"
    before = load("notmnist", tmp_path)
    (folder / "TrainA0.png").rename(folder / "TrainA9.png")
    after = load("notmnist", tmp_path)
    assert torch.equal(after.images[0], before.images[1])


def pixel(raw):
    changed = bytearray(raw)
    changed[-100] ^= 1
    return bytes(changed)


@pytest.mark.parametrize(
    "damage", [lambda raw: b"", lambda raw: raw[:-5], lambda raw: b"junk" + raw, pixel]
)
def test_a_damaged_entry_is_ignored_and_rewritten(tmp_path, damage):
    idx(tmp_path)
    first = load("mnist", tmp_path)
    (entry,) = entries(tmp_path)
    sound = entry.read_bytes()
    entry.write_bytes(damage(sound))
    same(first, load("mnist", tmp_path))
    assert entry.read_bytes() == sound


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("labels"),
        lambda tensors: tensors.update(images=tensors["images"].float()),
        lambda tensors: tensors.update(labels=tensors["labels"][:-1].clone()),
        lambda tensors: tensors.update(labels=tensors["labels"].int()),
        lambda tensors: tensors.update(images=tensors["images"].flatten()),
    ],
)
def test_an_entry_of_another_shape_is_ignored(tmp_path, change):
    idx(tmp_path)
    first = load("mnist", tmp_path)
    (entry,) = entries(tmp_path)
    from safetensors import safe_open

    with safe_open(entry, "pt") as file:
        about = file.metadata()
    tensors = load_file(entry)
    change(tensors)
    save_file(tensors, entry, about)
    same(first, load("mnist", tmp_path))


def longer(tensors, about):
    tensors["labels"][0] += 256


def renamed(tensors, about):
    about["class_names"][0] = "zero"


def deep(tensors, about):
    about["class_names"] = "DEEP"


def listed(tensors, about):
    about["content"] = None


@pytest.mark.parametrize("change", [longer, renamed, deep, listed])
def test_an_entry_that_says_something_else_is_ignored(tmp_path, change):
    """Labels count as bytes in the checksum of the content, and names do not count at all."""
    idx(tmp_path)
    first = load("mnist", tmp_path)
    (entry,) = entries(tmp_path)
    from safetensors import safe_open

    with safe_open(entry, "pt") as file:
        about = json.loads(file.metadata()["about"])
    tensors = load_file(entry)
    change(tensors, about)
    text = json.dumps(about).replace('"DEEP"', "[" * 10_000 + "]" * 10_000)
    save_file(tensors, entry, {"about": text})
    same(first, load("mnist", tmp_path))


def test_an_entry_of_other_files_is_ignored(tmp_path):
    """Whoever renames an entry does not make it the decoded form of these files."""
    idx(tmp_path / "a", seed=1)
    idx(tmp_path / "b", seed=2)
    load("mnist", tmp_path / "a")
    second = load("mnist", tmp_path / "b")
    (tmp_path / "b" / ".cache").joinpath(entries(tmp_path / "b")[0].name).write_bytes(
        entries(tmp_path / "a")[0].read_bytes()
    )
    same(second, load("mnist", tmp_path / "b"))


def test_a_root_that_cannot_be_written_to(tmp_path, monkeypatch):
    idx(tmp_path / "root")
    (tmp_path / "root" / ".cache").write_bytes(b"in the way")
    monkeypatch.setattr(cache.os, "access", lambda *given: False)
    monkeypatch.setattr(cache, "user_folder", lambda: tmp_path / "user")
    first = load("mnist", tmp_path / "root")
    assert len(list((tmp_path / "user" / "decoded").glob("*.safetensors"))) == 1
    monkeypatch.setattr("classgrad.data.idx.decode", None)
    same(first, load("mnist", tmp_path / "root"))


def test_nowhere_to_write_is_no_error(tmp_path, monkeypatch):
    idx(tmp_path)
    (tmp_path / ".cache").write_bytes(b"in the way")
    monkeypatch.setattr(cache, "user_folder", lambda: tmp_path / ".cache")
    same(load("mnist", tmp_path), load("mnist", tmp_path, cached=False))


def test_tensors_outlive_their_entry(tmp_path):
    idx(tmp_path)
    load("mnist", tmp_path)
    images = load("mnist", tmp_path)
    before = images.images.clone()
    entries(tmp_path)[0].write_bytes(b"")
    assert torch.equal(images.images, before)


def test_unknown_names():
    with pytest.raises(UserError, match="did you mean 'cifar100'"):
        load("cifar-100", ".")
    with pytest.raises(UserError, match="unknown split 'valid'"):
        load("cifar100", ".", "valid")


def test_check_tells_what_is_there(written):
    name, root = written
    data = DATASETS[name]
    report = check(name, root)
    assert report.status == "subset"
    assert f"of {data.train.count:,} training images" in report.note
    assert [finding.split for finding in report.findings] == ["train", "test"]
    assert all(sum(finding.per_class) == finding.count > 0 for finding in report.findings)
    assert not (root / ".cache").exists()
    assert check(as_release(name, root), root).status == "complete"
    path = cache_source(name, root)
    raw = path.read_bytes()
    path.write_bytes(b"")
    report = check(name, root)
    assert report.status == "other"
    assert path.name in report.note
    path.write_bytes(raw)


@pytest.mark.parametrize("name", list(DATASETS))
def test_check_tells_what_is_missing(tmp_path, name):
    report = check(name, tmp_path)
    assert report.status == "missing"
    assert "\n" not in report.note


def test_files_as_released_are_complete_without_a_checksum_of_the_content(tmp_path):
    WRITERS["svhn"](tmp_path)
    data = as_release("svhn", tmp_path)
    from classgrad.data.files import sha256

    raw = (tmp_path / "train_32x32.mat").read_bytes()
    files = {"train_32x32.mat": f"sha256:{sha256(raw)}"}
    train = replace(data.train, images=None, files=files)
    assert load(replace(data, train=train), tmp_path, "train").complete
    train = replace(train, files={"train_32x32.mat": "sha256:0"})
    images = load(replace(data, train=train), tmp_path, "train")
    assert images.status == "other"
    assert "with the labels of the release, in files other than the released ones" in images.note


def test_too_many_of_a_class_are_no_subset(tmp_path):
    idx(tmp_path)
    data = as_release("mnist", tmp_path)
    data = replace(data, train=replace(data.train, count=13, per_class=(1,) * 10, images=""))
    images = load(data, tmp_path, "train")
    assert images.status == "other"
    assert "more of class '0'" in images.note


def test_special_files_are_refused(tmp_path):
    folder = idx(tmp_path)
    path = folder / "train-images-idx3-ubyte"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="not a file"):
        load("mnist", tmp_path)


def test_large_files_are_not_read(tmp_path):
    folder = idx(tmp_path)
    with open(folder / "train-images-idx3-ubyte", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="1,099,511,627,776 bytes"):
        load("mnist", tmp_path)


def test_messages_stay_on_one_line(tmp_path):
    with pytest.raises(UserError) as caught:
        load("mnist", tmp_path / "two\nlines")
    assert "\n" not in str(caught.value)
    assert len(shown("x" * 5000)) == 300


def test_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CLASSGRAD_DATA", str(tmp_path / "sets"))
    assert data_dir() == tmp_path / "sets"
    assert data_dir(tmp_path) == tmp_path
    assert data_dir("~/sets") == data_dir(os.path.expanduser("~/sets"))
    monkeypatch.setenv("CLASSGRAD_DATA", "")
    assert data_dir().parts[-2:] == ("classgrad", "data")


def test_the_table_is_consistent():
    for name, data in DATASETS.items():
        assert data.name == name
        for split in (data.train, data.test):
            assert split.per_class is None or sum(split.per_class) == split.count
        for download in data.downloads:
            assert download.address.startswith("https://")
            assert download.size > 0
        assert data.downloads or data.by_hand.startswith("https://")


def test_importing_is_light():
    code = (
        "import sys, classgrad.data, classgrad.data.check, classgrad.data.fetch; "
        "print([name for name in ('scipy', 'PIL', 'pooch', 'requests', 'rich') "
        "if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
