"""Batched augmentation of image tensors: AugMix (Hendrycks et al., ICLR 2020), crop and flip."""

from classgrad.augment.augmix import augmix, crop, flip, refuse_range
from classgrad.augment.operations import ALL, OPERATIONS, STANDARD

__all__ = ["ALL", "OPERATIONS", "STANDARD", "augmix", "crop", "flip", "refuse_range"]
