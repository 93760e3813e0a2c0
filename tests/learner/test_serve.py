"""examples/serve.py under load: many threads ask while a learner learns one more task."""

import importlib.util
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import torch
from PIL import Image

from classgrad import Learner, Training

FILE = Path(__file__).parents[2] / "examples" / "serve.py"
CHANNELS = {"tomato": 0, "lime": 1, "plum": 2}


def example():
    spec = importlib.util.spec_from_file_location("serve_example", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def learn(serve, learner, task, names, folder):
    images = torch.cat([serve.coloured(CHANNELS[name], 20) for name in names])
    labels = [name for name in names for _ in range(20)]
    learner.learn(task, (images, labels), checkpoint_dir=folder)


def png(serve, name):
    buffer = BytesIO()
    Image.fromarray(serve.coloured(CHANNELS[name], 1)[0].permute(1, 2, 0).numpy()).save(
        buffer, "PNG"
    )
    return buffer.getvalue()


@pytest.fixture
def served(tmp_path):
    serve = example()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        learner = Learner(network="mlp", size=8, training=Training(epochs=8), seed=1)
        learn(serve, learner, "first", ["tomato", "lime"], tmp_path / "fruit")
        with serve.serve(tmp_path, 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()

            def ask(path, content):
                address = f"http://127.0.0.1:{server.server_port}/{path}"
                with urlopen(address, data=content, timeout=60) as response:
                    return json.load(response)

            yield serve, ask, tmp_path / "fruit"
            server.shutdown()


def test_many_threads_are_answered_while_a_task_is_learnt(served):
    serve, ask, folder = served
    questions = [(name, png(serve, name)) for name in ("tomato", "lime") for _ in range(60)]

    def learn_more():
        learn(serve, Learner.load(folder), "second", ["plum", "lime"], folder)

    with ThreadPoolExecutor(9) as pool:
        learning = pool.submit(learn_more)
        answers = list(pool.map(lambda one: ask("fruit", one[1]), questions))
        learning.result()
    correct = [a["class"] == name for a, (name, _) in zip(answers, questions, strict=True)]
    assert sum(correct) > 0.9 * len(correct)
    assert ask("fruit", png(serve, "plum"))["class"] == "plum"  # the learner was loaded again


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("fruit", b"no picture", "picture"),
        ("vegetables", b"x", "no learner 'vegetables'"),
        ("../fruit", b"x", "no learner"),
    ],
)
def test_what_is_wrong_is_said(served, path, content, words):
    _, ask, _ = served
    with pytest.raises(HTTPError) as caught:
        ask(path, content)
    assert caught.value.code == 400
    assert words in json.load(caught.value)["error"]
