"""Names are completed in a shell, without waiting for torch."""

import os
import subprocess
import sys

import pytest

from classgrad import cli
from classgrad.cli import tables
from commands import SRC

# As the console script does, and then tells whether torch was imported.
COMMAND = """#!{python}
import sys
sys.argv[0] = "classgrad"
from classgrad.cli import main
try:
    main()
finally:
    print("torch" in sys.modules, file=open("slow", "w"))
"""
SCRIPT = """
eval "$(classgrad --show-completion)"
COMP_WORDS=(classgrad run --method cgp,ap); COMP_CWORD=3
_classgrad_completion classgrad
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def completed(monkeypatch, capsys):
    """What zsh is offered for a line that was begun."""

    def complete(line):
        monkeypatch.setenv("_CLASSGRAD_COMPLETE", "complete_zsh")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"classgrad {line}")
        with pytest.raises(SystemExit) as ended:
            cli.app([], prog_name="classgrad", standalone_mode=False)
        assert not ended.value.code
        return capsys.readouterr().out

    return complete


def test_bash_completes_with_what_is_shown(tmp_path):
    command = tmp_path / "classgrad"
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    told = subprocess.run(
        ["bash", "--norc", "-c", SCRIPT],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(SRC), "SHELL": "/bin/bash"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines() == ["cgp,apd", "cgp,apd2"]
    assert (tmp_path / "slow").read_text() == "False\n"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("run split-", ["split-digits", "split-cifar100", "split-mnist"]),
        ("run fold", ["folder\\\\:"]),
        ("run --recipe ", ["fast", "paper"]),
        ("run --network efficientnet-lite", ["efficientnet-lite0", "efficientnet-lite2"]),
        ("run -m gpm,sg", ["gpm,sgp"]),
        ("sweep --benchmark five", ["five-datasets"]),
        ("tune permuted-", ["permuted-digits", "permuted-mnist"]),
        ("reproduce eta,lam", ["eta,lambda"]),
        ("learn state --method ew", ["ewc"]),
        ("learn state --network mlp", ["mlp"]),
        ("list pap", ["paper"]),
        ("list cgp -b split-d", ["split-digits"]),
    ],
)
def test_names_are_completed_where_they_are_given(completed, line, names):
    out = completed(line)
    assert all(f'"{name}"' in out for name in names)
    listed = [name for table in tables.all_tables().values() for name in table]
    begun = line.split()[-1]
    others = [name for name in listed if f'"{name}"' in out and not name.startswith(begun)]
    assert others == [] or line.endswith(" ")


def test_a_method_is_not_completed_twice(completed):
    assert "gpm,gpm" not in completed("run -m gpm,g")
