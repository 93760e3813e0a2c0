"""Checks of what classgrad needs on a machine, for the command doctor.

Nothing is concluded from names and versions alone: tasks are learnt, pictures decoded, a file
written, a page drawn. Each check catches every error, so that one failure does not hide the others.
"""

import importlib
import io
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from classgrad import __version__
from classgrad.errors import UserError, shown

Status = Literal["ok", "failed", "absent"]  # absent: what nothing else needs is not there

# What each extra is for; the packages are in the metadata of classgrad.
EXTRAS = {
    "tensorboard": "run --tensorboard writes curves",
    "ray": "reproduce and sweep --ray run on a cluster",
    "remote": "--out takes a URL such as s3://bucket/folder",
    "heic": "HEIC photos are read",
    "onnx": "export writes ONNX",
    "interop": "guards are tested on models of transformers",
    "docs": "make docs builds the site of the docs",
}
# Modules of packages whose names differ from that.
MODULES = {"ray": "classgrad.experiments.executors.ray", "pillow-heif": "pillow_heif"}

LEARNT = {"tasks": 2, "epochs": 1, "train_per_class": 20, "test_per_class": 10}
EDGE = 24  # width and height of the pictures that are decoded
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PAGE = "<script>document.write(6 * 7)</script>"
CHROMIUM_TIMEOUT = 30.0  # seconds


@dataclass(frozen=True)
class Found:
    """What came of a check: in words, with one line of advice."""

    found: str
    advice: str
    status: Status = "ok"


@dataclass(frozen=True)
class Check:
    """Something to try; an error says that it failed, and then `advice` holds."""

    name: str
    attempt: Callable[[], Found]
    advice: str
    essential: bool = False


@dataclass(frozen=True)
class Result:
    """What came of a check, by its name."""

    name: str
    status: Status
    found: str
    advice: str
    essential: bool


def checks(data_dir: Path | None) -> Iterator[Check]:
    """Yield all checks, the essential ones first."""
    again = "install classgrad again: pip install --force-reinstall classgrad"
    yield Check("Python", python, "install Python 3.11 or newer", essential=True)
    yield Check("packages", packages, again, essential=True)
    yield Check(
        "torch", torch, "install PyTorch again, see pytorch.org/get-started", essential=True
    )
    yield Check("pictures", pictures, "install Pillow again: pip install -U pillow", essential=True)
    yield Check("features", features, again, essential=True)
    yield Check(
        "threads", threads, "set OMP_NUM_THREADS to the number of processors, or give --threads"
    )
    yield Check("devices", devices, "compute on another device, --device cpu for example")
    other = "give another folder with --data-dir or CLASSGRAD_DATA"
    yield Check("data folder", partial(data_folder, data_dir), other)
    yield Check("data", partial(data, data_dir), "'classgrad data check all' says what is wrong")
    yield Check("Chromium", chromium, "name another in CLASSGRAD_CHROMIUM; only tests need it")
    for name, use in EXTRAS.items():
        advice = f"pip install -U 'classgrad[{name}]'"
        yield Check(name, partial(extra, name, use), advice)


def attempt(check: Check) -> Result:
    """Return what came of a check, whatever goes wrong in it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            found = check.attempt()
    except Exception as error:
        words = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        found = Found(shown(" ".join(words.split())), check.advice, "failed")
    return Result(check.name, found.status, found.found, found.advice, check.essential)


def python() -> Found:
    """Say which Python this is."""
    found = f"{platform.python_version()} on {platform.system()}, {platform.machine()}"
    return Found(found, f"this one is used: {sys.executable}")


def packages() -> Found:
    """Import all packages that are always needed, and compare their versions."""
    names = required()
    for name in names:
        if not name.startswith("efficientnet"):  # only weights: what `features` reads
            importlib.import_module("PIL" if name == "pillow" else name)
    return Found(f"classgrad {__version__}, {versions(names)}", "none is older than it may be")


def torch() -> Found:
    """Learn two tasks of digits with gradient projection."""
    from torch import __version__ as version

    return Found(f"{version}: {learn('cpu')}", "classgrad run learns five tasks, in seconds")


def learn(device: str) -> str:
    """Learn two tasks of digits on a device; return how long it took."""
    from classgrad.runs.run import run

    start = time.perf_counter()
    run("split-digits", "gpm", values={**LEARNT, "task_free": "never"}, device=device)
    return f"learnt two tasks in {time.perf_counter() - start:.1f} s"


def pictures() -> Found:
    """Encode a picture in each format, and decode it as a learner does."""
    import numpy as np
    from PIL import Image

    from classgrad.data.pictures import HEIC, formats, read_pictures

    ramp = np.linspace(0, 255, EDGE, dtype=np.uint8)
    original = Image.fromarray(np.dstack(3 * [np.tile(ramp, (EDGE, 1))]))
    bad = {}
    for name in formats():
        try:
            file = io.BytesIO()
            original.save(file, name)
            decoded, _, _ = read_pictures([file.getvalue()], EDGE)
            apart = np.abs(decoded[0].permute(1, 2, 0).numpy().astype(int) - np.asarray(original))
            if apart.mean() > 8:  # of 255; formats that lose little are below 2
                raise UserError("its pixels are others")
        except Exception as error:
            bad[name] = shown(error)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in bad.items())
    if bad.keys() & {"JPEG", "PNG"}:
        raise UserError(reasons)
    found = f"decoded {', '.join(name for name in formats() if name not in bad)}"
    if bad:
        return Found(f"{found}; not {reasons}", "pip install -U pillow, or convert such files")
    heic = "HEIC photos need pip install 'classgrad[heic]'" if HEIC not in formats() else ""
    return Found(found, heic or "HEIC photos are read, too")


def features() -> Found:
    """Compute features of a picture with the network that learners have by default."""
    import torch

    from classgrad import Learner

    learner = Learner()
    start = time.perf_counter()
    images = torch.zeros(2, 3, learner.size, learner.size, dtype=torch.uint8)
    images[1] = 255
    learner.learn("pictures", (images, torch.tensor([0, 1])), classes=["black", "white"])
    (guessed,) = learner.predict(images[1:])
    if guessed.ranking[0].name != "white":
        raise UserError("a white picture is taken for a black one: the weights must be damaged")
    seconds = time.perf_counter() - start
    found = f"{learner.network}, pretrained: told a white picture from a black in {seconds:.1f} s"
    return Found(found, "classgrad learn learns your photos with it")


def threads() -> Found:
    """Compare the number of threads with that of processors."""
    import torch

    count = torch.get_num_threads()
    usable = getattr(os, "sched_getaffinity", None)
    processors = len(usable(0)) if usable else os.cpu_count() or 1
    found = f"{count} on {processors} processors"
    if count > processors:
        raise UserError(f"{found} are too many: they wait for each other")
    if count < processors:
        return Found(found, "--threads or OMP_NUM_THREADS gives more, for a run by itself")
    return Found(found, "with --jobs, each run has one by default")


def devices() -> Found:
    """Learn on each device but the CPU."""
    import torch

    from classgrad.devices import available, multiplies_bfloat16

    parts = []
    for name in available():
        what = [] if name == "cpu" else [learn(name)]
        if multiplies_bfloat16(torch.device(name)):
            what.append("multiplies bfloat16")
        parts.append(f"{name} ({', '.join(what)})" if what else name)
    found = ", ".join(parts)
    if len(parts) > 1:
        return Found(found, f"--device {available()[1]} computes on it")
    if shutil.which("nvidia-smi"):
        advice = "there is an NVIDIA driver: install a PyTorch with CUDA, see pytorch.org"
        return Found(found, advice)
    return Found(found, "enough for photos and digits; long runs are faster on a GPU")


def data_folder(given: Path | None) -> Found:
    """Write a file where datasets are, or where their folder would be made, and remove it."""
    from classgrad.data import data_dir
    from classgrad.files import free_bytes, write_atomic

    root = data_dir(given)
    place = next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as folder:
        write_atomic(Path(folder) / "file", lambda part: part.write_bytes(bytes(2**20)))
    there = "" if place == root.absolute() else ", which is not there yet"
    found = f"{root}{there}: wrote a file, {free_bytes(place) / 1e9:,.0f} GB are free"
    return Found(found, "--data-dir or CLASSGRAD_DATA names another")


def data(given: Path | None) -> Found:
    """Decode the test images of every dataset that is there."""
    from classgrad.benchmarks import BENCHMARKS
    from classgrad.data import data_dir, load
    from classgrad.data.datasets import Missing

    root, good, missing, bad = data_dir(given), [], [], []
    for name in dict.fromkeys(name for one in BENCHMARKS.values() for name in one.datasets):
        try:
            load(name, root, "test")
            good.append(name)
        except Missing:
            missing.append(name)
        except UserError as error:
            bad.append(str(error))
    if bad:
        raise UserError("; ".join(bad))
    if not good:
        advice = "digits need none; 'classgrad data fetch cifar100' downloads one"
        return Found("no dataset", advice, "absent")
    found = f"decoded the test images of {', '.join(good)}"
    if missing:
        return Found(
            f"{found}; missing: {', '.join(missing)}", f"classgrad data fetch {missing[0]}"
        )
    return Found(found, "'classgrad data check all' compares every image with the release")


def chromium() -> Found:
    """Let Chromium draw a page with a script in it."""
    path = find_chromium()
    if path is None:
        advice = "only the tests of pages need it; CLASSGRAD_CHROMIUM can name one"
        return Found("not found", advice, "absent")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # No sandbox: as root, in a container, Chromium has none.
        switches = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        switches += ["--disable-background-networking", f"--user-data-dir={profile}"]
        command = [path, *switches, "--dump-dom", f"data:text/html,{PAGE}"]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # it starts others, which end with it
        ) as process:
            try:
                drawn, _ = process.communicate(timeout=CHROMIUM_TIMEOUT)
            except subprocess.TimeoutExpired:
                raise UserError(f"{path} drew nothing in {CHROMIUM_TIMEOUT:g} s") from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
    if "42" not in drawn.replace(PAGE, ""):
        raise UserError(f"{path} drew no page, and ended with code {process.returncode}")
    return Found(f"{path}: drew a page", "only the tests of pages need it")


def find_chromium() -> str | None:
    """Return the browser that is named, one on the path, or one that Playwright installed."""
    named = os.environ.get("CLASSGRAD_CHROMIUM")
    if named:
        return named
    found = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if found or importlib.util.find_spec("playwright") is None:
        return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def extra(name: str, use: str) -> Found:
    """Import the packages of an extra."""
    names = required(name)
    if not all(is_installed(one) for one in names):
        return Found("not installed", f"pip install 'classgrad[{name}]': {use}", "absent")
    for one in names:
        importlib.import_module(MODULES.get(one, one))
    if "fsspec" in names:  # which PyTorch installs, without what reads and writes these
        import fsspec

        try:
            for protocol in ("s3", "gs"):
                fsspec.get_filesystem_class(protocol)
        except ImportError as error:
            advice = f"pip install 'classgrad[{name}]': {use}"
            return Found(f"{versions(names)}; {shown(error)}", advice, "absent")
    return Found(versions(names), use)


def required(extra: str | None = None) -> dict[str, str]:
    """Return the packages that classgrad needs, or one of its extras, with the oldest versions.

    >>> "torch" in required(), required("heic").keys()
    (True, dict_keys(['pillow-heif']))
    """
    found = {}
    for line in metadata.requires("classgrad") or []:
        requirement, _, condition = line.partition(";")
        of_extra = re.search(r"""extra == ['"](\w+)['"]""", condition)
        if (of_extra and of_extra[1]) == extra:
            parts = re.match(r"([\w.-]+)[^<>=]*(?:[>=]=)?([\d.]*)", requirement.strip())
            assert parts is not None
            found[parts[1]] = parts[2]
    return found


def is_installed(package: str) -> bool:
    """Tell whether a package is installed."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def versions(names: dict[str, str]) -> str:
    """Return packages with their versions; refuse one that is older than it may be."""
    for name, oldest in names.items():
        if numbers(metadata.version(name)) < numbers(oldest):
            raise UserError(f"{name} {metadata.version(name)} is older than {oldest}")
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)


def numbers(version: str) -> list[int]:
    """Return the numbers of a version, which can be compared.

    >>> numbers("2.13.0+cpu") < numbers("2.9")
    False
    """
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
