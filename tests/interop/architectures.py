"""Small models of Hugging Face transformers with random weights, and easy tasks for them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]

CLASSES = 4  # two for each of two tasks
SIZE = 16  # of images
TRANSFORMER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
}
IMAGES = {"image_size": SIZE, "patch_size": 8}
WORDS, LENGTH = 64, 6  # of texts


@dataclass(frozen=True)
class Architecture:
    """A configuration and a model of `transformers`, by the names of their classes."""

    model: str
    options: dict[str, Any] = field(default_factory=dict)
    config: str = ""  # by default that of the model
    reads: str = "pixel_values"
    rate: float = 1e-3

    def task(self, number: int, count: int, seed: int = 0) -> Batch:
        """Return samples of two new classes as the model takes them."""
        return task(self.reads, number, count, seed)

    def make(self) -> nn.Module:
        """Return a model with random weights."""
        import transformers

        name = self.config or self.model.split("For")[0] + "Config"
        config = getattr(transformers, name)(num_labels=CLASSES, **self.options)
        model: nn.Module = getattr(transformers, self.model)(config)
        return model


ARCHITECTURES = {
    "ViT": Architecture("ViTForImageClassification", TRANSFORMER | IMAGES),
    "DeiT": Architecture("DeiTForImageClassification", TRANSFORMER | IMAGES),
    "DINOv2": Architecture("Dinov2ForImageClassification", TRANSFORMER | IMAGES),
    "BEiT": Architecture(
        "BeitForImageClassification",
        TRANSFORMER | IMAGES | {"use_relative_position_bias": True, "layer_scale_init_value": 0.1},
    ),
    "CLIP's vision tower": Architecture(
        "CLIPForImageClassification",
        {"vision_config": TRANSFORMER | IMAGES, "text_config": TRANSFORMER},
    ),
    "Swin": Architecture(
        "SwinForImageClassification",
        {
            "image_size": SIZE,
            "patch_size": 4,
            "embed_dim": 32,
            "depths": [1, 2],
            "num_heads": [2, 2],
            "window_size": 2,
        },
    ),
    "ConvNeXt": Architecture(
        "ConvNextForImageClassification",
        {"hidden_sizes": [24, 48, 96], "depths": [1, 1, 1], "num_stages": 3, "patch_size": 4},
    ),
    "ResNet": Architecture(
        "ResNetForImageClassification",
        {
            "embedding_size": 16,
            "hidden_sizes": [16, 32, 64],
            "depths": [1, 1, 1],
            "layer_type": "basic",
        },
    ),
    "MobileNetV2": Architecture(
        "MobileNetV2ForImageClassification", {"image_size": 32, "depth_multiplier": 0.35}
    ),
    "EfficientNet": Architecture(
        "EfficientNetForImageClassification",
        {
            "image_size": SIZE,
            "width_coefficient": 1.0,
            "depth_coefficient": 1.0,
            "in_channels": [32, 16, 24],
            "out_channels": [16, 24, 40],
            "kernel_sizes": [3, 3, 3],
            "strides": [1, 2, 2],
            "depthwise_padding": [],
            "num_block_repeats": [1, 1, 1],
            "expand_ratios": [1, 4, 4],
            "hidden_dim": 1280,
            "dropout_rate": 0.0,
            "drop_connect_rate": 0.0,
            "batch_norm_momentum": 0.5,  # few steps have to do
            "initializer_range": 0.2,
        },
    ),
    "BERT": Architecture(
        "BertForSequenceClassification",
        TRANSFORMER
        | {
            "vocab_size": WORDS,
            "max_position_embeddings": LENGTH,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        reads="input_ids",
    ),
}


def task(reads: str, number: int, count: int, seed: int = 0) -> Batch:
    """Return samples of two new classes as a model of `transformers` takes them."""
    rng = torch.Generator().manual_seed(2 * seed + number)
    labels = torch.arange(count) % 2
    if reads == "input_ids":  # each class has words of its own
        share = WORDS // CLASSES
        words = torch.randint(share, (count, LENGTH), generator=rng)
        ids = words + share * (labels + 2 * number).unsqueeze(1)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    else:
        means = torch.randn(2, 3, SIZE, SIZE, generator=rng)
        noise = torch.randn(count, 3, SIZE, SIZE, generator=rng)
        batch = {reads: means[labels] + 0.3 * noise}
    return {**batch, "labels": labels + 2 * number}
