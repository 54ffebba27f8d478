"""MoCo: an encoder learns without labels, from two views of every image and a queue of past keys.

The queue is an XBNWrapper of which enqueue_mask stores the keys alone; XBN moves them to where the momentum
encoder of now would put them. ResNet-18 on CIFAR-10, or --glyphs: a small network on characters that
matplotlib draws. Prints the accuracy of a vote of nearest neighbours. (Keys are embedded in the order of
their queries: MoCo's shuffling between GPUs, which batch normalization wants there, is left out.)

    python examples/moco.py --root data
    python examples/moco.py --glyphs --epochs 2
"""

from __future__ import annotations

import argparse
import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.testers import BaseTester
from pytorch_metric_learning.utils.inference import FaissKNN
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from tqdm import tqdm

from pml_xbn import XBNWrapper
from pml_xbn.datasets import CIFAR10, Glyphs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--root", type=Path, default=Path("data"), help="of CIFAR-10 (default: data)")
parser.add_argument("--glyphs", action="store_true")
parser.add_argument("--epochs", type=int, default=200)
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()
# Behind the flags, so that --help needs none of them.
for package in ("faiss", "matplotlib", "torchvision"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install ".[examples]"')

from torchvision import models, transforms


def main(args: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # a network this small gains nothing from more
    torch.manual_seed(0)

    query_encoder, train, gallery, test = glyphs() if args.glyphs else cifar10(args.root)
    query_encoder.to(device)
    key_encoder = copy.deepcopy(query_encoder).requires_grad_(False)
    loss_fn = XBNWrapper(SupConLoss(temperature=0.1), embedding_size=128, memory_size=4096).to(device)
    optimizer = torch.optim.SGD(query_encoder.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(Numbered(train), 128, shuffle=True, drop_last=True, num_workers=args.workers)

    for epoch in range(args.epochs):
        total = 0.0
        for (first, second), images in tqdm(loader, f"epoch {epoch + 1}"):
            with torch.no_grad():
                for key, query in zip(key_encoder.parameters(), query_encoder.parameters(), strict=True):
                    key.lerp_(query, 0.01)  # the encoder of the keys follows that of the queries
                keys = key_encoder(second.to(device))
            embeddings = torch.cat([query_encoder(first.to(device)), keys])
            is_key = torch.arange(len(embeddings), device=device) >= len(keys)
            # Every image is a class of its own, whose new key takes the place of its old one in the queue.
            labels = images.to(device).repeat(2)
            optimizer.zero_grad()
            loss = loss_fn(embeddings, labels, enqueue_mask=is_key, sample_ids=labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        accuracy = knn_accuracy(query_encoder, gallery, test, device)
        print(f"epoch {epoch + 1}: loss {total / len(loader):.3f}, kNN accuracy {100 * accuracy:.1f}")
        query_encoder.train()


class Numbered(Dataset[Any]):
    """Two views of every image, and its number in place of its label."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> tuple[tuple[Any, Any], int]:
        return (self.dataset[number][0], self.dataset[number][0]), number


def knn_accuracy(model: nn.Module, gallery: Any, test: Any, device: torch.device) -> float:
    """Returns the share of test images whose class a weighted vote of the nearest 20 in the gallery tells."""
    tester = BaseTester(batch_size=256, dataloader_num_workers=0, data_device=device)
    rows, classes = (values.cpu() for values in tester.get_all_embeddings(gallery, model))
    embeddings, labels = (values.cpu() for values in tester.get_all_embeddings(test, model))
    squared_distances, neighbours = FaissKNN()(embeddings, 20, rows)
    weights = torch.exp((1 - squared_distances / 2) / 0.1)  # of the cosine, at the temperature of the loss
    votes = torch.zeros(len(labels), int(classes.max()) + 1)
    votes.scatter_add_(1, classes.flatten()[neighbours], weights)
    return float((votes.argmax(dim=1) == labels.flatten()).float().mean())


def cifar10(root: Path) -> tuple[nn.Module, Any, Any, Any]:
    """Returns encoder, training images, gallery and test images."""
    normalize = transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
    to_tensor = transforms.Compose([transforms.ToTensor(), normalize])
    colours = transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
    shapes = transforms.RandomResizedCrop(32, (0.2, 1)), transforms.RandomHorizontalFlip()
    augment = transforms.Compose([*shapes, colours, transforms.RandomGrayscale(0.2), to_tensor])
    encoder = models.resnet18(num_classes=128)
    encoder.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)  # for images as small as these
    encoder.maxpool = nn.Identity()
    train = CIFAR10(root, "train", augment, download=True)
    return encoder, train, CIFAR10(root, "train", to_tensor), CIFAR10(root, "test", to_tensor)


def glyphs() -> tuple[nn.Module, Any, Any, Any]:
    """Returns the same. Test characters are new to the encoder: the gallery is every other image of them."""
    to_float = transforms.ConvertImageDtype(torch.float32)
    test = Glyphs("test", to_float)
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    encoder = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 128))
    augment = transforms.Compose([transforms.RandomAffine(15, (0.1, 0.1), (0.8, 1.2)), to_float])
    train = Glyphs("train", augment)
    gallery, rest = (Subset(test, range(first, len(test), 2)) for first in (0, 1))
    return encoder, train, gallery, rest


if __name__ == "__main__":
    main(args)
