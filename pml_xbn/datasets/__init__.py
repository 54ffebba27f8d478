"""Datasets for retrieval: Glyphs and Han, which are drawn on your machine, and those of the papers."""

from .cars196 import Cars196
from .cifar10 import CIFAR10
from .cifar100 import CIFAR100
from .cub import CUB
from .deep_fashion_2 import DeepFashion2
from .glyphs import Glyphs
from .han import Han
from .in_shop import InShop
from .stanford_online_products import StanfordOnlineProducts
from .vehicle_id import VehicleID

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CUB",
    "Cars196",
    "DeepFashion2",
    "Glyphs",
    "Han",
    "InShop",
    "StanfordOnlineProducts",
    "VehicleID",
]
