"""Every command that a page or the command line's help shows is one that classgrad takes.

Each is checked against the parser, and the settings and names in it are looked up. Those that need
nothing but this machine are also run, shortened; ONLY_PARSED says which are not.
"""

import glob
import importlib.util
import re
import shlex
import shutil
import sys
import tomllib
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

import shell_lines
from classgrad import cli
from classgrad.cli import checks, reproduce, tune
from classgrad.cli.options import make_plans, parse_seeds, parse_settings
from classgrad.runs import recipes
from photos import photos

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PLACES: dict[str, list[str]] = {}
for place, line in [*shell_lines.lines_of_pages(), *shell_lines.lines_of_help()]:
    PLACES.setdefault(line, []).append(place)
COMMANDS = sorted(PLACES)

# Why a command is not run here -> what is found in such commands.
ONLY_PARSED = {
    "starts several processes": r"^torchrun ",
    "needs a dataset that is downloaded": r"(run|tune|--benchmark) (split-)?(cifar100|five-|clinc)"
    r"|reproduce (?!my-table)|data (fetch|check)",
    "needs weights installed apart, which tests/cli/test_sentences.py replaces": r" assistant",
    "needs a cluster or a bucket": r"--ray |s3://",
    "needs another device": r"--device cuda",
    "serves a page until it is stopped": r"^classgrad watch ",
    "reads all datasets, which tests/cli/test_doctor.py replaces": r"^classgrad doctor",
}
# Pages have these words where a reader puts something of theirs.
PLACEHOLDERS = {"METHODS": "cgp,finetune"}
# Every method is run by the tests of its contract.
FEWER = {"all": "gpm,hat", "cgp,gpm,sgp,ewc,er,lwf,finetune,multitask": "gpm,multitask"}
# What is put behind a command, so that it takes less than a second.
SHORTER = {
    "run": ["tasks=2", "epochs=1", "train_per_class=3", "test_per_class=3"],
    "run folder:photos": ["epochs=1", "image_size=8"],
    "learn": ["epochs=10"],
}
TRUNK = """
from torch import nn


def trunk():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU())
"""


def why_not_run(command):
    """Say why a command is not run here; nothing if it is."""
    return next((why for why, part in ONLY_PARSED.items() if re.search(part, command)), None)


def kind(command):
    """Return a command without the name of the file it writes, which makes no difference."""
    return re.sub(r" \S+(\.(?:pt2|onnx))$", r" FILE\1", command)


RUN = {kind(command): command for command in COMMANDS if why_not_run(command) is None}


def words_of(command):
    """Return the words after `classgrad`, without where the output goes."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(command)]
    words = words[words.index("classgrad") + 1 :]
    return words[: words.index(">")] if ">" in words else words


def parsed(words):
    """Return the command that these words call, with its parameters, without calling it."""
    command, name, context = typer.main.get_command(cli.app), "classgrad", None
    while hasattr(command, "commands"):
        context = command.make_context(name, [*words], parent=context)
        words = [*context._protected_args, *context.args]
        if not words:
            return context
        name, command, words = command.resolve_command(context, words)
    return command.make_context(name, [*words], parent=context)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A folder with what the commands take for granted: photos, learners, runs, files."""
    folder = tmp_path_factory.mktemp("given")
    tasks = {
        "spring": ("lime", "tomato"),
        "summer": ("banana", "plum"),
        "birds": ("wren", "robin"),
    }
    for seed, (task, classes) in enumerate(tasks.items()):
        photos(folder / "photos" / task, *classes, count=4, seed=seed)
    for light, name in enumerate(tasks["summer"]):  # of which no two look alike
        for number in range(12):
            pixels = np.random.default_rng(number).integers(0, 128, (8, 8, 3)) + 128 * light
            path = folder / "photos" / "summer" / name / f"other-{number:02}.png"
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    spring = folder / "photos" / "spring"
    shutil.copy(spring / "lime" / "00.png", folder / "photo.jpg")
    shutil.copytree(spring / "lime", folder / "more-photos")
    shutil.copytree(spring / "tomato", folder / "kept")
    for name in ("mine", "my-recipe"):
        shutil.copy(Path(recipes.__path__[0], "fast.toml"), folder / f"{name}.toml")
    page = (ROOT / "docs" / "reproduce.md").read_text()
    (table,) = re.findall(r"```toml\n(title.*?)```", page, re.DOTALL)
    (folder / "my-table.toml").write_text(table)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_the_parser_takes_it_and_what_it_names_is_there(command, given, monkeypatch):
    monkeypatch.chdir(given)
    if command.startswith("torchrun "):
        from torch.distributed.run import parse_args

        before = shlex.split(command)[1:]
        taken = parse_args(before)
        assert (taken.module, taken.training_script) == (True, "classgrad")
    context = parsed(words_of(command))
    values = context.params
    if context.info_name == "run":
        plans = [
            plan
            for seed in parse_seeds(values["seed"])
            for plan in make_plans(
                values["benchmark"],
                values["method"],
                values["network"],
                values["recipe"],
                seed,
                parse_settings(values["settings"] or [], values["weights"]),
            )
        ]
        assert plans
    if context.info_name in ("sweep", "tune", "reproduce"):
        found = []

        def seen(log, jobs, *_):
            found.extend(jobs)
            return []

        monkeypatch.setattr(reproduce, "execute_jobs", seen)
        monkeypatch.setattr(tune, "execute_jobs", seen)
        values["dry_run"] = True
        if "://" in values["out"]:
            values["out"] = "runs"
        context.command.invoke(context)
        assert found


@pytest.mark.parametrize("command", sorted({line for _, line in shell_lines.words_in_text()}))
def test_a_command_in_a_sentence_exists_with_the_options_it_names(command):
    words = re.split(r"[ |]", command)
    if words[0] == "python":
        assert importlib.util.find_spec(words[2]), command
        return
    known = dict(shell_lines.commands(typer.main.get_command(cli.app)))
    name = words.pop(0)
    while words and f"{name} {words[0]}" in known:
        name = f"{name} {words.pop(0)}"
    options = {option for parameter in known[name].params for option in parameter.opts}
    options.add("--help")
    assert name != "classgrad" or words
    assert {word for word in words if word.startswith("-")} <= options


@pytest.fixture(scope="module")
def done(given, tmp_path_factory):
    """A folder with all that, and in which some commands were run: each command has its copy."""
    folder = tmp_path_factory.mktemp("done") / "folder"
    shutil.copytree(given, folder)
    (folder / "mine.py").write_text(TRUNK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        obeyed(patch, "learn new --task spring --images photos/spring")
        obeyed(patch, "learn state --task spring --images photos/spring")
        obeyed(patch, "learn state --task birds --images photos/birds")
        obeyed(patch, "learn mine --task birds --images photos/birds --model mine:trunk")
        obeyed(patch, "run --method cgp,gpm")
        obeyed(patch, "card state --json", into="card.json")
    shutil.copytree(folder / "state", folder / "backup" / "state")
    shutil.copytree(folder / "runs", folder / "results" / "permuted-digits")
    return folder


def obeyed(patch, command, into=None):
    """Run a command, shortened, in this process; it must end well."""
    words = shortened(shlex.split(command))
    patch.setattr(sys, "argv", ["classgrad", *words])
    with ExitStack() as stack:
        if into is not None:
            stack.enter_context(redirect_stdout(stack.enter_context(Path(into).open("w"))))
        ended = stack.enter_context(pytest.raises(SystemExit))
        cli.main()
    assert not ended.value.code, words


def shortened(words):
    """Return the words of a command that takes less time: of a run, for example, with less data."""
    name = words[0]
    words = [FEWER.get(word, word) for word in words]
    if name in ("sweep", "tune", "reproduce"):
        return [*words, "--dry-run"]
    if name == "run" and "folder:photos" in words:
        words, name = [*words, "--network", "mlp"], "run folder:photos"
    if name == "run" and "--seed" in words:
        words = [*words, "--seed", words[words.index("--seed") + 1].split(",")[0]]
    set_by_hand = {word.partition("=")[0] for word in words}
    for pair in SHORTER.get(name, []):
        if pair.partition("=")[0] not in set_by_hand:
            words = [*words, "--set", pair]
    if name == "learn" and not Path(words[1]).exists():
        words = [word for word in words if word not in ("--tune", "last")]  # of pretrained ones
        words = [*words, "--size", "8", "--method", "gpm"]
        words += [] if "--model" in words else ["--network", "mlp"]
    return words


@pytest.mark.parametrize("command", RUN.values())
def test_it_does_what_the_page_says_without_an_error(command, done, tmp_path, monkeypatch):
    shutil.copytree(done, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.syspath_prepend(tmp_path / "copy")
    words = words_of(command)
    if "--model" in words:
        words[1] = "mine"
    if words[0] == "learn" and "summer" not in words:
        shutil.rmtree(words[1], ignore_errors=True)  # it begins a learner
    words = [part for word in words for part in (sorted(glob.glob(starred(word))) or [word])]
    into = command.partition(" > ")[2] or None
    obeyed(monkeypatch, shlex.join(words), into)


def starred(word):
    """Return a pattern of files for a word; `...` is the rest of a name."""
    return word.replace("...", "*") if "*" in word or "..." in word else glob.escape(word)


def test_every_reason_why_commands_are_not_run_is_one_of_some():
    assert {why_not_run(command) for command in COMMANDS} == {None, *ONLY_PARSED}
    assert len(RUN) > 60


def test_targets_of_make_are_those_of_the_makefile():
    targets = set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[0].split())
    named = {}
    for path in shell_lines.PAGES:
        for found in re.finditer(
            r"(?:`|^)make ([a-z][\w-]*)(?=`| +#| [A-Z]+=|$)", text_of(path), re.M
        ):
            named.setdefault(found[1], path.name)
    assert set(named) - targets == set()
    page = text_of(ROOT / "docs" / "make.md")
    assert {target for target in targets if f"| `make {target}` |" not in page} == set()


def test_scripts_and_extras_that_pages_name_exist():
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    extras, scripts = set(), set()
    for path in shell_lines.PAGES:
        for found in re.findall(r"classgrad\[([\w,]+)\]", text_of(path)):
            extras |= {*found.split(",")}
        scripts |= {*re.findall(r"(?:`|^)python ([\w/]+\.py)", text_of(path), re.M)}
    assert {"ray", "onnx"} <= extras <= project["optional-dependencies"].keys()
    assert {"docs/fill_tables.py", "tests/list_tables.py"} <= scripts
    assert all((ROOT / script).exists() for script in scripts)


def test_the_page_on_doctor_names_all_that_it_checks():
    rows = re.findall(r"^\| (.*?) \|", text_of(ROOT / "docs" / "doctor.md"), re.M)
    named = [name.strip("`") for row in rows[1:] for name in row.split(", ")]
    assert named == [check.name for check in checks.checks(None)]


def text_of(path):
    return path.read_text(encoding="utf-8")
