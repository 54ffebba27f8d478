"""Hugging Face Trainer: a callback keeps the memory, which the Trainer's own checkpoints leave out.

KeepLoss writes it into every checkpoint, and --resume reads it from there: the run goes on bit for bit. All
ranks share one memory. The images are Glyphs, which matplotlib draws.

    python examples/hugging_face_trainer.py --epochs 4
    python examples/hugging_face_trainer.py --epochs 8 --resume
    torchrun --nproc_per_node=2 examples/hugging_face_trainer.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs

BATCH_SIZE = 32  # of a rank


class MetricTrainer(Trainer):
    """A Trainer whose loss is one of the embeddings, and which draws whole classes."""

    loss_is_scaled_for_ga = False  # the Trainer divides it by the batches of an optimizer step
    loss_fn: XBNWrapper

    def compute_loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor], *_: Any, **__: Any) -> Any:
        images, labels = inputs
        return self.loss_fn(model(images), labels)

    def get_train_dataloader(self) -> Any:
        batches = ClassBatches(self.train_dataset.labels)
        return self.accelerator.prepare(DataLoader(self.train_dataset, batch_sampler=batches))


class KeepLoss(TrainerCallback):
    """Writes the state of a loss into the Trainer's checkpoints."""

    def __init__(self, loss_fn: nn.Module) -> None:
        self.loss_fn = loss_fn

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:  # all ranks hold the same memory
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            torch.save(self.loss_fn.state_dict(), folder / "loss_fn.pt")


class ClassBatches:
    """Batches of eight classes by four images, the same in a resumed run: they depend on the epoch alone."""

    batch_size, drop_last, epoch = BATCH_SIZE, True, 0

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.labels) // BATCH_SIZE

    def __iter__(self) -> Iterator[list[int]]:
        np.random.seed(self.epoch)  # PML's sampler draws from it, and shuffles what it holds: a new one
        sampler = MPerClassSampler(self.labels, 4, BATCH_SIZE, len(self) * BATCH_SIZE)
        yield from torch.tensor(list(sampler)).view(-1, BATCH_SIZE).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--output", type=Path, default=Path("runs/hugging_face"))
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step (default: 1)")
    parser.add_argument("--bf16", action="store_true", help="mixed precision")
    parser.add_argument("--resume", action="store_true", help="from the last checkpoint")
    args = parser.parse_args()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 256), nn.ReLU(), nn.Linear(256, 64))
    loss_fn = XBNWrapper(SupConLoss(temperature=0.1), 64, memory_size=1024, gather_distributed=True)
    arguments = TrainingArguments(
        str(args.output),
        num_train_epochs=args.epochs,
        gradient_accumulation_steps=args.accumulate,
        bf16=args.bf16,
        use_cpu=not torch.cuda.is_available(),
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_strategy="epoch",
        ddp_find_unused_parameters=False,
    )
    train_set = Glyphs("train", transform=lambda image: image / 255)
    trainer = MetricTrainer(network, arguments, train_dataset=train_set, callbacks=[KeepLoss(loss_fn)])
    trainer.loss_fn = loss_fn.to(arguments.device)
    checkpoint = get_last_checkpoint(arguments.output_dir) if args.resume else None
    if checkpoint:
        loss_fn.load_state_dict(torch.load(Path(checkpoint) / "loss_fn.pt", weights_only=True))
    trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.is_world_process_zero():
        test_set = Glyphs("test")
        with torch.no_grad():
            embeddings = network.cpu()(test_set.images / 255)
        calculator = AccuracyCalculator(include=("precision_at_1",), k=1, device=torch.device("cpu"))
        accuracy = calculator.get_accuracy(embeddings, test_set.labels)
        print(f"Recall@1 {100 * accuracy['precision_at_1']:.1f}, {loss_fn.num_rows} rows in memory")


if __name__ == "__main__":
    main()
