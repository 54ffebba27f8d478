"""Data sets for open-set retrieval that neither pytorch-metric-learning nor torchvision has."""

from .glyphs import Glyphs

__all__ = ["Glyphs"]
