"""Serve a folder of learners over HTTP: POST a picture to /NAME, get the answer as JSON.

    python examples/serve.py learners 8000
    curl --data-binary @photo.jpg http://127.0.0.1:8000/fruit

An example to start from, not a server for the open internet. `Serving` is a WSGI application, so
any WSGI server with threads can run it. A learner is loaded when it is first asked, and again when
another process has taught it something. Without arguments it serves two small learners to itself.
"""

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from urllib.request import urlopen
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import torch
from PIL import Image

from classgrad import Learner, Training, UserError

LARGEST = 50_000_000  # bytes of a picture


class Serving:
    """Answers requests from many threads, with the learners in the folders below `root`."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.learners: dict[str, Learner] = {}
        self.loading = threading.Lock()

    def learner(self, name: str) -> Learner:
        """Return a learner as it is on disk now."""
        with self.loading:
            if name not in [folder.name for folder in self.root.iterdir()]:
                raise UserError(f"there is no learner '{name}'")
            learner = self.learners.get(name)
            if learner is None or learner.changed():
                learner = self.learners[name] = Learner.load(self.root / name).frozen()
            return learner

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request."""
        try:
            size = int(environ.get("CONTENT_LENGTH") or 0)
            if environ["REQUEST_METHOD"] != "POST" or not 0 < size <= LARGEST:
                raise UserError(f"POST a picture of at most {LARGEST:,} bytes to /NAME")
            picture = environ["wsgi.input"].read(size)
            (answer,) = self.learner(environ["PATH_INFO"].strip("/")).predict([picture])
            status = "200 OK"
            content = {
                "class": answer.name,
                "task": answer.task,
                "probability": answer.probability,
            }
        except UserError as error:
            status, content = "400 Bad Request", {"error": str(error)}
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(content).encode()]


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each request."""

    daemon_threads = True
    request_queue_size = 64


class Quiet(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, *_args: Any) -> None:
        """Log nothing."""


def serve(root: str | Path, port: int) -> WSGIServer:
    """Return a server on this machine's own address; port 0 is any that is free."""
    return make_server("127.0.0.1", port, Serving(root), Server, Quiet)


def main() -> None:
    """Make two learners, serve them, and ask from several threads."""
    with tempfile.TemporaryDirectory() as root:
        colours = {"fruit": {"lime": 1, "tomato": 0}, "flowers": {"violet": 2, "poppy": 0}}
        for name, classes in colours.items():
            learner = Learner(network="mlp", size=8, training=Training(epochs=8), seed=1)
            images = torch.cat([coloured(channel, 20) for channel in classes.values()])
            labels = [label for label in classes for _ in range(20)]
            learner.learn("first", (images, labels), checkpoint_dir=Path(root, name))
        server = serve(root, 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def ask(name: str, channel: int) -> str:
            buffer = BytesIO()
            Image.fromarray(coloured(channel, 1)[0].permute(1, 2, 0).numpy()).save(buffer, "PNG")
            address = f"http://127.0.0.1:{server.server_port}/{name}"
            with urlopen(address, data=buffer.getvalue(), timeout=30) as response:
                return str(json.load(response)["class"])

        with ThreadPoolExecutor(8) as pool:
            asked = [(name, c) for name, classes in colours.items() for c in classes.values()] * 5
            answers = list(pool.map(lambda question: ask(*question), asked))
        for (name, channel), answer in list(zip(asked, answers, strict=True))[:4]:
            print(f"{name}, {['red', 'green', 'blue'][channel]}: {answer}")
        server.shutdown()
        server.server_close()


def coloured(channel: int, count: int) -> torch.Tensor:
    """Return pictures that are bright in one channel."""
    images = torch.randint(0, 90, (count, 3, 8, 8), dtype=torch.uint8)
    images[:, channel] += 150
    return images


if __name__ == "__main__":
    if len(sys.argv) == 3:
        with serve(sys.argv[1], int(sys.argv[2])) as running:
            running.serve_forever()
    else:
        torch.manual_seed(1)
        main()
