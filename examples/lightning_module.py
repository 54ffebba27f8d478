"""Lightning: the memory is an attribute of the module, and Lightning keeps it with the model.

Its checkpoints hold all of the memory, and --resume goes on from the last one bit for bit. On many ranks
gather_distributed=True makes one memory of theirs. The images are Glyphs, which matplotlib draws.

    python examples/lightning_module.py --epochs 4
    python examples/lightning_module.py --epochs 8 --resume
    python examples/lightning_module.py --devices 2
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs
from pml_xbn.training import ClassBatches

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--output", type=Path, default=Path("runs/lightning"))
parser.add_argument("--devices", type=int, default=1, help="processes (default: 1)")
parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step (default: 1)")
parser.add_argument("--bf16", action="store_true", help="mixed precision")
parser.add_argument("--resume", action="store_true", help="from last.ckpt")
args = parser.parse_args()
# Behind the flags, so that --help needs none of them.
for package in ("faiss", "matplotlib", "lightning"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install lightning ".[examples]"')

import lightning
from lightning.pytorch.callbacks import ModelCheckpoint

BATCH_SIZE = 32  # of all ranks


class Embedder(lightning.LightningModule):
    """A network and its loss."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Flatten(), nn.Linear(32 * 32, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 64)]
        self.network = nn.Sequential(*layers)
        self.loss_fn = XBNWrapper(SupConLoss(temperature=0.1), 64, memory_size=1024, gather_distributed=True)
        self.calculator = AccuracyCalculator(("precision_at_1",), k=1, device=torch.device("cpu"))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss: Tensor = self.loss_fn(self.network(images), labels)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_validation_epoch_start(self) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.seen.append((self.network(images).float().cpu(), labels.cpu()))

    def on_validation_epoch_end(self) -> None:
        embeddings, labels = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        recall_at_1 = self.calculator.get_accuracy(embeddings, labels)["precision_at_1"]
        self.log("recall_at_1", recall_at_1, rank_zero_only=True)
        self.print(f"epoch {self.current_epoch + 1}: Recall@1 {100 * recall_at_1:.1f}")


class GlyphBatches(lightning.LightningDataModule):
    """Batches that depend on epoch and rank alone, so that a resumed run draws the same ones."""

    def __init__(self) -> None:
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # only the first rank validates
        self.train_set = Glyphs("train", transform=lambda image: image / 255)
        self.test_set = Glyphs("test", transform=lambda image: image / 255)

    def train_dataloader(self) -> DataLoader[Any]:
        num_ranks, rank = self.trainer.world_size, self.trainer.global_rank
        batches = ClassBatches(self.train_set.labels, 4, BATCH_SIZE, num_ranks=num_ranks, rank=rank)
        batches.set_epoch(self.trainer.current_epoch)
        return DataLoader(self.train_set, batch_sampler=batches)

    def val_dataloader(self) -> DataLoader[Any]:
        num_images = len(self.test_set) if self.trainer.is_global_zero else 0
        return DataLoader(Subset(self.test_set, range(num_images)), batch_size=256)


def main(args: argparse.Namespace) -> None:
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # a network this small gains nothing from more
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        devices=args.devices,
        max_epochs=args.epochs,
        accumulate_grad_batches=args.accumulate,
        precision="bf16-mixed" if args.bf16 else "32-true",
        callbacks=[ModelCheckpoint(args.output, filename="last", enable_version_counter=False)],
        reload_dataloaders_every_n_epochs=1,  # for the batches of the next epoch
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        logger=False,
    )
    checkpoint = args.output / "last.ckpt"
    trainer.fit(Embedder(), GlyphBatches(), ckpt_path=checkpoint if args.resume else None)


if __name__ == "__main__":
    main(args)
