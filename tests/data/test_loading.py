import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from classgrad.data import DATASETS, data_dir, load
from classgrad.data.loading import check
from classgrad.errors import UserError, shown
from data.datafiles import WRITERS, as_release, idx, notmnist


@pytest.fixture(params=list(WRITERS))
def written(request, tmp_path):
    WRITERS[request.param](tmp_path)
    return request.param, tmp_path


def test_loading_writes_nothing(written):
    name, root = written
    before = sorted(root.rglob("*"))
    load(name, root, "train")
    assert sorted(root.rglob("*")) == before


def source(name, root):
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


def test_unknown_names():
    with pytest.raises(UserError, match="did you mean 'cifar100'"):
        load("cifar-100", ".")
    with pytest.raises(UserError, match="unknown split 'valid'"):
        load("cifar100", ".", "valid")


def test_check_says_what_is_there(written):
    name, root = written
    data = DATASETS[name]
    report = check(name, root)
    assert report.status == "subset"
    assert f"of {data.train.count:,} training images" in report.note
    assert [finding.split for finding in report.findings] == ["train", "test"]
    assert all(sum(finding.per_class) == finding.count > 0 for finding in report.findings)
    assert check(as_release(name, root), root).status == "complete"
    path = source(name, root)
    raw = path.read_bytes()
    path.write_bytes(b"")
    report = check(name, root)
    assert report.status == "other"
    assert path.name in report.note
    path.write_bytes(raw)


@pytest.mark.parametrize("name", list(DATASETS))
def test_check_says_what_is_missing(tmp_path, name):
    report = check(name, tmp_path)
    assert report.status == "missing"
    assert "\n" not in report.note


def test_files_as_released_are_complete_without_a_checksum_of_the_content(tmp_path):
    WRITERS["svhn"](tmp_path)
    data = as_release("svhn", tmp_path)
    raw = (tmp_path / "train_32x32.mat").read_bytes()
    files = {"train_32x32.mat": f"sha256:{hashlib.sha256(raw).hexdigest()}"}
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
        "import sys, classgrad.data, classgrad.data.loading, classgrad.data.fetch; "
        "print([name for name in ('scipy', 'PIL', 'pooch', 'requests', 'rich') "
        "if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
