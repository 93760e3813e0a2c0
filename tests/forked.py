"""Python processes that fork from one which has loaded PyTorch: they start in no time."""

import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["classgrad.cli", "classgrad.runs.run", "torch._dynamo", "torch.distributed", "rich.console"]
)


class Forked:
    """Runs `python WORDS`, with words that begin with `-m MODULE` or a script, as `Popen` would."""

    def __init__(
        self, words: Sequence[str], cwd: Path | str, env: Mapping[str, str] = os.environ
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="forked-"))
        self._outputs = [folder / name for name in ("out", "err")]
        given = (list(words), str(cwd), dict(env), [str(path) for path in self._outputs])
        self._process = CONTEXT.Process(target=_run, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until it ends; return what it wrote to standard output and error."""
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("python", timeout or 0)
        out, err = (path.read_text(encoding="utf-8") for path in self._outputs)
        shutil.rmtree(self._outputs[0].parent)
        return out, err


def _run(words: list[str], cwd: str, env: dict[str, str], outputs: list[str]) -> None:
    """Do in a forked process what `python WORDS` would do."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        words = words[2:]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
