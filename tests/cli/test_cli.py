import json
import os
import subprocess
import sys

import pytest
import typer

from classgrad import __version__, cli
from classgrad.runs.record import RunRecord
from commands import refused

QUICK = ["--set", "epochs=1", "--set", "tasks=2", "--set", "train_per_class=10"]


def classgrad(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "classgrad", *words], capture_output=True, text=True, **options
    )


def test_run_writes_a_record_and_a_picture(call, tmp_path):
    code, out, _ = call("run", "--method", "gpm", *QUICK)
    assert code == 0
    (folder,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    record = RunRecord.load(folder)
    assert record.complete
    assert f"{record.average_accuracy:.2f}" in out
    assert (folder / "matrix.png").exists()
    assert str(folder.name) in out.replace("\n", "")


def test_run_compares_several_methods(call, tmp_path):
    words = ["--set", "eta=0.8", "--set", "lambda=0"]
    code, out, _ = call("run", "split-digits", "--method", "cgp,gpm,finetune", *QUICK, *words)
    assert code == 0
    for name in ("cgp", "gpm", "finetune"):
        assert name in out
    assert (tmp_path / "runs" / "matrices.png").exists()
    records = [RunRecord.load(p) for p in (tmp_path / "runs").iterdir() if p.is_dir()]
    (cgp,) = [record for record in records if record.method_name == "cgp"]
    assert cgp.method["similarity"] == 0.8
    assert cgp.method["contrast"] == 0


def test_json_prints_the_record_and_nothing_else(call, tmp_path):
    code, out, _ = call("run", "--method", "finetune", "--json", *QUICK)
    assert code == 0
    data = json.loads(out)
    (folder,) = (tmp_path / "runs").iterdir()
    assert data == json.loads((folder / "record.json").read_text())


def test_list_names_every_table(call):
    code, out, _ = call("list", "--json")
    tables = json.loads(out)
    assert code == 0
    assert {"cgp", "gpm", "finetune", "multitask"} <= tables["methods"].keys()
    assert {"permuted-digits", "split-digits"} <= tables["benchmarks"].keys()
    assert {"mlp", "alexnet5", "lenet5", "resnet18"} <= tables["networks"].keys()
    assert "fast" in tables["recipes"]
    code, out, _ = call("list")
    assert code == 0
    assert all(name in out for table in tables.values() for name in table)
    assert max(len(line) for line in out.splitlines()) <= 80


def test_list_names_the_settings_of_an_entry(call):
    code, out, _ = call("list", "cgp", "--json")
    settings = json.loads(out)["cgp"]
    assert code == 0
    assert "default 0.7" in settings["similarity (eta)"]
    assert all("None" not in line for line in settings.values())
    for name in ("training", "split-cifar100", "mlp", "gpm"):
        code, out, _ = call("list", name)
        assert code == 0
        assert "default" in out
        assert max(len(line) for line in out.splitlines()) <= 80


def test_show_repeats_what_run_printed(call, tmp_path):
    call("run", "--method", "gpm", *QUICK)
    (folder,) = (tmp_path / "runs").iterdir()
    code, out, _ = call("show", str(folder), str(folder / "matrix.png"))
    assert code == 0
    assert "directions in use after task" in out
    code, out, _ = call("show", str(folder), "--json")
    assert json.loads(out)["method"]["name"] == "gpm"


WRONG = {
    "unknown method": (["run", "-m", "cgpp"], "unknown method 'cgpp': did you mean 'cgp'?"),
    "no method": (["run", "-m", ","], "names no method"),
    "unknown benchmark": (["run", "permuted-digit"], "did you mean 'permuted-digits'?"),
    "unknown network": (["run", "--network", "alexnet"], "did you mean 'alexnet5'?"),
    "unknown recipe": (["run", "--recipe", "quick"], "unknown recipe 'quick'"),
    "unknown setting": (["run", "--set", "etta=1"], "did you mean 'eta'?"),
    "eta too large": (["run", "--set", "eta=1.5"], "eta must be less than or equal to 1"),
    "eta too small": (["run", "--set", "eta=-1.5"], "eta must be greater than or equal to -1"),
    "epsilon zero": (["run", "--set", "epsilon=0"], "epsilon must be greater than 0"),
    "epsilon above one": (["run", "--set", "epsilon=1.1"], "epsilon must be less than or"),
    "lambda negative": (["run", "--set", "lambda=-1"], "lambda must be greater than or equal"),
    "no epochs": (["run", "--set", "epochs=0"], "epochs must be greater than or equal to 1"),
    "no number": (["run", "--set", "epochs=ten"], "epochs must be a valid integer"),
    "infinite rate": (["run", "--set", "learning_rate=Infinity"], "learning_rate must be a finite"),
    "no value": (["run", "--set", "eta"], "--set takes NAME=VALUE"),
    "given twice": (["run", "--set", "eta=1", "--set", "eta=0"], "gives 'eta' twice"),
    "word and letter": (["run", "--set", "eta=1", "--set", "similarity=0"], "the same"),
    "images too small": (["run", "--network", "alexnet5"], "network 'alexnet5' needs images"),
    "layer without value": (["run", "--set", 'energy={"fc1": 0.9}'], "no value for layer 'fc2'"),
    "layer that is not": (["run", "--set", 'energy={"*": 0.9, "c": 1}'], "'c' matches no layer"),
    "tasks do not divide": (
        ["run", "split-digits", "--set", "tasks=3"],
        "tasks must be 1, 2, 5 or 10",
    ),
    "seed": (["run", "--seed", "-1"], "seed"),
    "seed word": (["run", "--seed", "one"], "seed"),
    "method twice": (["run", "--method", "cgp,gpm,cgp"], "--method names 'cgp' twice"),
    "unknown option": (["run", "--fast"], "--fast"),
    "unknown command": (["rum"], "rum"),
    "only a picture": (["show", "matrix.png"], "only pictures, pages or tables are given"),
    "unknown entry": (["list", "gpmm"], "did you mean 'gpm'?"),
    "no run": (["show", "nowhere"], "no run at 'nowhere'"),
    "nothing to show": (["show"], "runs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_code_2_nothing_written(call, case):
    refused(call, *WRONG[case])


@pytest.mark.parametrize(
    "words",
    [["run", "--fast"], ["rum"], ["show"], ["predict", "a", "b", "--top", "0"], ["export", "a"]],
    ids=" ".join,
)
def test_all_errors_of_typer_have_one_base_class(words):
    with pytest.raises(cli.COMMAND_LINE_ERROR) as caught:
        cli.app(words, standalone_mode=False)
    assert caught.value.format_message()


def test_the_base_class_is_that_of_the_click_a_typer_uses():
    assert issubclass(typer.BadParameter, cli.click_exception(typer.BadParameter))
    click = pytest.importorskip("click")  # newer versions of typer bring their own copy
    assert cli.click_exception(click.BadParameter) is click.ClickException


def test_output_path_that_is_a_file_is_refused(call, tmp_path):
    (tmp_path / "taken").write_text("mine")
    for place in ("taken", "taken/below"):
        code, _, err = call("run", "--out", place, *QUICK)
        assert code == 2
        assert "'taken' is a file" in err
    assert (tmp_path / "taken").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_diverging_run_stops_and_keeps_what_was_done(call, tmp_path):
    code, out, err = call("run", "--method", "gpm", *QUICK, "--set", "learning_rate=1e30")
    assert code == 2
    assert "the loss is" in err
    assert "task 1" in err
    assert "epoch 1" in err
    assert err.count("\n") == 1
    (folder,) = (tmp_path / "runs").iterdir()
    assert RunRecord.load(folder).complete is False
    code, out, _ = call("show", str(folder))
    assert code == 0
    assert "not finished" in out


def test_without_a_command_there_is_help_and_nothing_else(call):
    code, out, err = call()
    assert code == 2
    assert "Usage" in out + err
    assert "classgrad: " not in err


def test_every_command_has_help_with_an_example(call):
    for command in ("run", "list", "show"):
        code, out, _ = call(command, "--help")
        assert code == 0
        assert "Example" in out


def test_same_seed_same_record_in_two_processes_with_two_threads(tmp_path):
    # Threads that wait leave the processor to others: tests run in parallel.
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    records = []
    for name in ("one", "two"):
        words = ["run", "--json", "--method", "cgp", *QUICK, "--seed", "3", "--out", name]
        result = classgrad(*words, cwd=tmp_path, env=environment)
        assert result.returncode == 0, result.stderr
        data = json.loads(result.stdout)
        del data["seconds"]
        records.append(data)
    assert records[0] == records[1]


def test_several_seeds_are_run_and_averaged(call, tmp_path):
    code, out, _ = call("run", "--method", "gpm,finetune", "--seed", "1,2", *QUICK)
    assert code == 0
    records = [RunRecord.load(p) for p in (tmp_path / "runs").iterdir() if p.is_dir()]
    assert sorted((r.method_name, r.seed) for r in records) == [
        (name, seed) for name in ("finetune", "gpm") for seed in (1, 2)
    ]
    assert "mean of seeds 1, 2" in out
    mean = sum(r.average_accuracy for r in records if r.method_name == "gpm") / 2
    assert f"{mean:.1f} ±" in out
    folders = [str(p) for p in (tmp_path / "runs").iterdir() if p.is_dir()]
    code, out, _ = call("show", "--markdown", *folders)
    assert code == 0
    assert f"| gpm | {mean:.1f} ±" in out


def test_all_methods_is_every_method_of_the_table():
    from classgrad.cli.options import make_plans
    from classgrad.methods import METHODS

    plans = make_plans("split-digits", "all", None, "fast", 1, {})
    assert [plan.method.name for plan in plans] == list(METHODS)


@pytest.mark.parametrize("seed", ["x", "1,x", "-1", "", "1,1", "1.5"])
def test_bad_seeds_are_refused(call, tmp_path, seed):
    code, _, err = call("run", "--seed", seed)
    assert code == 2
    assert "--seed" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_version(call):
    assert call("--version") == (0, f"classgrad {__version__}\n", "")
