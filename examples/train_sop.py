"""ResNet-50 on Stanford Online Products, the script to copy for one GPU or many: bfloat16, exact resume.

With torchrun all ranks share one batch and one memory. Every epoch and SIGTERM write last.pt into --output,
from which --resume goes on, on a CPU bit for bit. Glyphs needs neither data nor a GPU. Han has as many
classes as Stanford Online Products, drawn from fonts that it fetches on Debian 12. For data of your own
return images and labels by index from build(), and all labels as .labels or .targets.

Settings are those of docs/which_variant.md: XBNWrapper without a miner, and batch normalization frozen where
the network is pretrained. Where it trains, on GPUs it sees the batch of all ranks. The memory begins with the
first step; from random weights and with thousands of classes, as in Han, warm up for an epoch (--warmup 1).

    python examples/train_sop.py --dataset glyphs --epochs 2
    python examples/train_sop.py --dataset han --epochs 6 --warmup 1
    python examples/train_sop.py --root data/sop --resume
    torchrun --nproc_per_node=4 examples/train_sop.py --root data/sop --resume
"""

import argparse
import gc
import os
import signal
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning import losses, miners, testers
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import distributed, nn
from tqdm import tqdm

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs, Han, StanfordOnlineProducts
from pml_xbn.training import ClassBatches, SeededAugmentation, fill_from, freeze_batch_norm

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--dataset", choices=("sop", "han", "glyphs"), default="sop", help="(default: sop)")
parser.add_argument("--root", type=Path, help="folder of the data (default: data/sop or data/han)")
parser.add_argument("--output", type=Path, help="(default: runs/sop, runs/han or runs/glyphs)")
parser.add_argument("--epochs", type=int, default=50)
parser.add_argument("--batch-size", type=int, default=64, help="of all ranks (default: 64)")
parser.add_argument("--batch-norm", choices=("trains", "frozen"), help="(default: frozen if pretrained: sop)")
parser.add_argument("--miner", choices=("none", "pair-margin"), default="none", help="(default: none)")
parser.add_argument("--warmup", type=int, default=0, help="epochs, before the memory is filled (default: 0)")
parser.add_argument("--workers", type=int, default=4, help="that load images (default: 4)")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
args.root, args.output = args.root or Path("data") / args.dataset, args.output or Path("runs") / args.dataset
args.batch_norm = args.batch_norm or ("frozen" if args.dataset == "sop" else "trains")
# Behind the flags, so that --help needs none of them.
for package in ("faiss", "matplotlib", "tensorboard", "timm", "torchvision"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install ".[examples]"')

import timm
from torch.utils import data, tensorboard
from torchvision import transforms


def build(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Returns the network, and the images of training and test."""
    if args.dataset != "sop":
        scale = transforms.ConvertImageDtype(torch.float32)
        augment = transforms.Compose([transforms.RandomAffine(15, (0.1, 0.1), (0.8, 1.2)), scale])
        network = timm.create_model("test_resnet", in_chans=1, num_classes=64)
        if args.dataset == "han":
            han = partial(Han, root=args.root, download=True)
            return network, han("train", transform=augment), han("test", transform=scale)
        return network, Glyphs("train", augment), Glyphs("test", scale)
    augment, crop = (timm.data.create_transform(224, is_training=train) for train in (True, False))
    train_set = StanfordOnlineProducts(args.root, "train", augment)
    network = timm.create_model("resnet50", pretrained=True, num_classes=512)
    return network, train_set, StanfordOnlineProducts(args.root, "test", crop)


def settings_of(args: argparse.Namespace) -> dict[str, str]:
    """Returns what has to be the same where a run is resumed."""
    names = ("dataset", "batch_size", "batch_norm", "warmup", "miner")
    return {name: str(getattr(args, name)) for name in names}


def state_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the state of the run that goes on, if one does."""
    path = args.output / "last.pt"
    if not path.exists():
        return {}
    if not args.resume:
        raise SystemExit(f"{path} is of an earlier run: pass --resume to go on with it, or another --output")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if state.get("settings") != settings_of(args):
        raise SystemExit(f"{path} is of {state.get('settings')}: pass the same, or another --output")
    return state


def outlive_sigterm(worker: int) -> None:
    """torchrun and schedulers send it to workers too, whose death would stop the step and its checkpoint."""
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(20))


def train(
    args: argparse.Namespace,
    state: dict[str, Any],
    device: torch.device,
    network: Any,
    train_set: Any,
    test_set: Any,
) -> None:
    rank, world_size, on_gpu = distributed.get_rank(), distributed.get_world_size(), device.type == "cuda"
    if args.batch_norm == "frozen":
        freeze_batch_norm(network)
    elif on_gpu:
        network = timm.layers.convert_sync_batchnorm(network)
    network = network.to(device)
    model = nn.parallel.DistributedDataParallel(network)
    steps, memory_size = len(train_set) // args.batch_size, len(train_set) // 2
    loss, pair_margin = losses.SupConLoss(temperature=0.1), miners.PairMarginMiner(0.2, 0.8)
    miner = pair_margin if args.miner == "pair-margin" else None
    options = {"miner": miner, "warmup": args.warmup * steps, "gather_distributed": True}
    loss_fn = XBNWrapper(loss, network.num_classes, memory_size, **options)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4 if args.dataset == "sop" else 1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 15 * steps, gamma=0.33)
    parts = {"network": network, "loss_fn": loss_fn, "optimizer": optimizer, "scheduler": scheduler}
    all_labels = train_set.labels if hasattr(train_set, "labels") else train_set.targets
    batches = ClassBatches(all_labels, 4, args.batch_size, num_ranks=world_size, rank=rank)
    others = ClassBatches(all_labels, 4, args.batch_size, num_ranks=world_size, rank=rank, seed=1)
    load = partial(
        data.DataLoader,
        SeededAugmentation(train_set),
        num_workers=args.workers,
        worker_init_fn=outlive_sigterm,
    )
    tester = testers.BaseTester(batch_size=128, dataloader_num_workers=args.workers, data_device=device)
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1, device=torch.device("cpu"))
    path, stop = args.output / "last.pt", torch.tensor(0)
    for name in state.keys() & parts.keys():
        parts[name].load_state_dict(state[name])
    first_epoch, done = state.get("epoch", 0), state.get("done", 0)
    board: Any = tensorboard.SummaryWriter(args.output) if rank == 0 else None
    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: terminated.append(number))
    for epoch in range(first_epoch, args.epochs):
        batches.set_epoch(epoch)
        loader = load(batch_sampler=list(batches)[done:])  # what the run has not seen before the checkpoint
        bar = tqdm(loader, f"epoch {epoch + 1}", steps, initial=done, disable=rank > 0)
        for step, batch in enumerate(bar, done):
            images, labels = (tensor.to(device) for tensor in batch)
            torch.manual_seed((epoch * steps + step) * world_size + rank)  # if the model or the miner draws
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):  # which needs no GradScaler
                if epoch * steps + step == loss_fn.warmup > 0:  # by all ranks together
                    to_store = islice(load(batch_sampler=others), memory_size // args.batch_size)
                    fill_from(loss_fn, to_store, model)
                loss = loss_fn(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if rank == 0:
                board.add_scalar("loss", loss, epoch * steps + step)
            done, stop = step + 1, torch.tensor(len(terminated), device=device)
            distributed.all_reduce(stop)  # the signal may reach ranks in different steps
            if stop:
                break

        if rank == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(
                {**state, "settings": settings_of(args), "epoch": epoch, "done": done},
                path.with_suffix(".unfinished"),
            )
            os.replace(path.with_suffix(".unfinished"), path)  # at all times a whole file
        if stop:
            return
        if rank == 0:
            rows, labels = tester.get_all_embeddings(test_set, network)
            recall_at_1 = calculator.get_accuracy(rows, labels.squeeze(1))["precision_at_1"]
            board.add_scalar("recall_at_1", recall_at_1, (epoch + 1) * steps)
            print(f"epoch {epoch + 1}: Recall@1 {100 * recall_at_1:.1f}, {loss_fn.num_rows} rows in memory")
        network.train()
        done = 0


if __name__ == "__main__":
    torch.manual_seed(0)
    try:
        network_and_data = build(args)
    except (FileNotFoundError, ValueError) as error:
        remedy = (
            "" if args.dataset == "han" else f": unpack its archive into {args.root}, or try --dataset glyphs"
        )
        raise SystemExit(f"{error}{remedy}") from error
    state = state_of(args)
    if "RANK" not in os.environ:  # started without torchrun: one process
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="0")
    on_gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")
    torch.cuda.set_device(device) if on_gpu else torch.set_num_threads(1)  # which is fastest for small images
    # The first rank measures alone, for which others wait at the next step.
    distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(hours=2))
    train(args, state, device, *network_and_data)
    gc.collect()  # the model holds the process group in a cycle
    distributed.destroy_process_group()
