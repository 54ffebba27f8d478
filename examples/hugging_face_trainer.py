"""Hugging Face Trainer: the loss is given to it, and keep_loss puts the memory into its checkpoints.

The Trainer saves the model and not the loss. keep_loss adds the memory to every checkpoint; --resume takes
it from there: the run goes on bit for bit. All ranks share one memory. The images are Glyphs, which
matplotlib draws.

    python examples/hugging_face_trainer.py --epochs 4
    python examples/hugging_face_trainer.py --epochs 8 --resume
    torchrun --nproc_per_node=2 examples/hugging_face_trainer.py
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
from pml_xbn.training import ClassBatches, keep_loss

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--output", type=Path, default=Path("runs/hugging_face"))
parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step (default: 1)")
parser.add_argument("--bf16", action="store_true", help="mixed precision")
parser.add_argument("--resume", action="store_true", help="from the last checkpoint")
args = parser.parse_args()
# Behind the flags, so that --help needs none of them.
for package in ("faiss", "matplotlib", "accelerate", "transformers"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install accelerate transformers ".[examples]"')

from transformers import EvalPrediction, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

BATCH_SIZE = 32  # of a rank


class Embedder(nn.Module):
    """Returns embeddings in the form in which the Trainer expects outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"embeddings": self.layers(images)}


class MetricTrainer(Trainer):
    """A Trainer that draws whole classes."""

    def get_train_dataloader(self) -> Any:
        batches = ClassBatches(self.train_dataset.labels, m=4, batch_size=BATCH_SIZE)
        loader = DataLoader(self.train_dataset, batch_sampler=batches, collate_fn=collate)
        return self.accelerator.prepare(loader)


def collate(samples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    images, labels = zip(*samples, strict=True)
    return {"images": torch.stack(images), "labels": torch.tensor(labels)}


def recall(prediction: EvalPrediction) -> dict[str, float]:
    """Returns Recall@1 in percent, every test image searched for among all others."""
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1, device=torch.device("cpu"))
    embeddings, labels = (
        torch.as_tensor(values) for values in (prediction.predictions, prediction.label_ids)
    )
    return {"recall_at_1": 100 * calculator.get_accuracy(embeddings.float(), labels)["precision_at_1"]}


def main(args: argparse.Namespace) -> None:
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # a network this small gains nothing from more
    torch.manual_seed(0)
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
        eval_strategy="epoch",
        per_device_eval_batch_size=256,
        label_names=["labels"],
        ddp_find_unused_parameters=False,
        average_tokens_across_devices=False,  # which multiplies a loss that is given by the number of ranks
        report_to=[],
    )
    loss_fn.to(arguments.device)

    def compute_loss(outputs: dict[str, Tensor], labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        loss: Tensor = loss_fn(outputs["embeddings"], labels) / args.accumulate
        return loss  # divided, as the Trainer expects of a loss that is given

    train_set, test_set = (Glyphs(split, lambda image: image / 255) for split in ("train", "test"))
    trainer = MetricTrainer(
        Embedder(),
        arguments,
        data_collator=collate,
        train_dataset=train_set,
        eval_dataset=Subset(test_set, range(len(test_set))),
        compute_loss_func=compute_loss,
        compute_metrics=recall,
        callbacks=[keep_loss(loss_fn)],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.output_dir) if args.resume else None)
    if trainer.is_world_process_zero():
        print(f"{loss_fn.num_rows} rows in memory")


if __name__ == "__main__":
    main(args)
