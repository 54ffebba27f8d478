"""sentence-transformers: a loss with a memory, which keep_loss puts into the checkpoints.

The library's checkpoints hold the model and not the loss (its issue 783). keep_loss adds the memory, and
--resume takes it from there, bit for bit. A tiny BERT, built here, learns to find the Unicode names of
characters by some of their words; nothing is downloaded.

    python examples/sentence_transformers_loss.py --epochs 4
    python examples/sentence_transformers_loss.py --epochs 8 --resume
    torchrun --nproc_per_node=2 examples/sentence_transformers_loss.py
"""

from __future__ import annotations

import argparse
import random
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch
from pytorch_metric_learning.losses import NTXentLoss
from torch import Tensor, nn

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs
from pml_xbn.training import keep_loss

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--output", type=Path, default=Path("runs/sentence_transformers"))
parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step (default: 1)")
parser.add_argument("--bf16", action="store_true", help="mixed precision")
parser.add_argument("--resume", action="store_true", help="from the last checkpoint")
args = parser.parse_args()
# Behind the flags, so that --help needs none of them.
for package in ("matplotlib", "accelerate", "datasets", "sentence_transformers"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install "sentence-transformers[train]" ".[examples]"')

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers import SentenceTransformerTrainingArguments as TrainingArguments
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.trainer_utils import get_last_checkpoint

WIDTH = 64


class MemoryLoss(nn.Module):
    """Pairs (query, name) of a batch, all rows in one memory, labelled by their pair."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model = model  # under this name the trainer puts the wrapped one in its place
        self.memory = XBNWrapper(NTXentLoss(0.1), WIDTH, memory_size=1024, gather_distributed=True)

    def forward(self, sentence_features: list[dict[str, Tensor]], labels: Tensor) -> Tensor:
        embeddings = [self.model(features)["sentence_embedding"] for features in sentence_features]
        return self.memory(torch.cat(embeddings), labels.repeat(2))  # type: ignore[no-any-return]


def build_model(names: list[str]) -> SentenceTransformer:
    """Returns a BERT with two layers, whose tokens are the words of the names."""
    words = sorted({word for name in names for word in name.split()})
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
    words_to_numbers = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words_to_numbers.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words_to_numbers, pad_token="[PAD]")
    sizes = {"hidden_size": WIDTH, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    with tempfile.TemporaryDirectory() as folder:
        BertModel(BertConfig(vocab_size=len(vocabulary), **sizes)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return SentenceTransformer(modules=[Transformer(folder), Pooling(WIDTH)])


def shortened(names: list[str]) -> list[str]:
    """Returns some words of every name, in another order."""
    draw, words = random.Random(0), [name.split() for name in names]
    return [" ".join(draw.sample(name_words, (2 * len(name_words) + 2) // 3)) for name_words in words]


def retrieval(names: list[str]) -> InformationRetrievalEvaluator:
    """Searches for every name by its query."""
    queries, corpus = (
        {str(key): text for key, text in enumerate(texts)} for texts in (shortened(names), names)
    )
    settings = {"accuracy_at_k": [1, 10], "precision_recall_at_k": [1], "mrr_at_k": [10], "map_at_k": [10]}
    found = {key: {key} for key in queries}
    return InformationRetrievalEvaluator(queries, corpus, found, ndcg_at_k=[10], batch_size=256, **settings)


def main(args: argparse.Namespace) -> None:
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # a network this small gains nothing from more
    torch.manual_seed(0)
    names = Glyphs("train").label_names
    pairs = {"query": shortened(names), "name": names, "label": list(range(len(names)))}
    loss = MemoryLoss(model := build_model(names))
    arguments = TrainingArguments(
        str(args.output),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=args.accumulate,
        bf16=args.bf16,
        use_cpu=not torch.cuda.is_available(),
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_strategy="epoch",
        eval_strategy="epoch",
        report_to=[],
    )
    trainer = SentenceTransformerTrainer(
        model,
        arguments,
        Dataset.from_dict(pairs),
        loss=loss,
        evaluator=retrieval(Glyphs("test").label_names),
        callbacks=[keep_loss(loss.memory, "memory.pt")],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(args.output)) if args.resume else None)
    if trainer.is_world_process_zero():
        print(f"{loss.memory.num_rows} rows in memory")


if __name__ == "__main__":
    main(args)
