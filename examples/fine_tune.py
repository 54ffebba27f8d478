"""Fine-tunes a pretrained network on a folder of images, one subfolder a class, and measures Recall@1.

Half of the classes train and half are held out to measure with. What the study of docs/fine_tuning.md found
is the default: batch normalization that is frozen, a low rate that suits the batch size, and a memory of
half of the images (--memory-size 0: none). Writes best.pt, curve.png and neighbours.png to --output.

    python examples/fine_tune.py --glyphs --epochs 2
    python examples/fine_tune.py --data data/products
    python examples/fine_tune.py --data data/products --batch-size 256 --part-size 32 --memory-size 0
"""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning import losses, testers
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch.utils import data
from tqdm import tqdm

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs
from pml_xbn.diagnostics import batch_noise
from pml_xbn.losses import BatchLoss
from pml_xbn.training import ClassBatches, GradCache, freeze_batch_norm

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--data", type=Path, help="folder with one subfolder of images a class")
parser.add_argument(
    "--glyphs", action="store_true", help="small images and a network of random weights instead"
)
parser.add_argument("--output", type=Path, default=Path("runs/fine_tune"))
parser.add_argument("--backbone", default="tf_efficientnet_lite0", help="a network of timm (%(default)s)")
parser.add_argument(
    "--weights", default="timm", help="timm: fetch them; none: random; else a file (%(default)s)"
)
parser.add_argument(
    "--weights-by-order", action="store_true", help="of a file that has other names for the same layers"
)
parser.add_argument("--stages", type=int, help="that train, from the last of the network (all)")
parser.add_argument("--size", type=int, default=224, help="of the images in pixels (%(default)s)")
parser.add_argument("--batch-norm", choices=("frozen", "trains"), help="frozen, of random weights trains")
parser.add_argument(
    "--rate", type=float, help="of learning (the study's for batch size and memory; of random weights 1e-3)"
)
parser.add_argument("--batch-size", type=int, default=16, help="(%(default)s)")
parser.add_argument("--images-per-class", type=int, default=4, help="in a batch (%(default)s)")
parser.add_argument("--part-size", type=int, help="images that are in the network at a time (all)")
parser.add_argument("--memory-size", type=int, help="rows (half of the training images); 0: no memory")
parser.add_argument("--epochs", type=int, default=16, help="(%(default)s)")
parser.add_argument("--workers", type=int, default=2, help="that load images (%(default)s)")
args = parser.parse_args()
# Behind the flags, so that --help needs none of them.
for package in ("faiss", "matplotlib", "timm", "torchvision"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install ".[examples]"')
if not args.glyphs and not (args.data and args.data.is_dir()):
    raise SystemExit(
        f"--data {args.data}: pass a folder with one subfolder of images a class, or try --glyphs"
    )

import timm
from matplotlib.figure import Figure
from torchvision import datasets, transforms


def build_network(args: argparse.Namespace) -> Any:
    """Returns the network, whose last layer makes embeddings of 128 numbers."""
    if args.glyphs:
        return timm.create_model("test_resnet", in_chans=1, num_classes=128)
    try:
        network: Any = timm.create_model(args.backbone, pretrained=args.weights == "timm")
    except Exception as error:  # of whatever library fetches them
        raise SystemExit(f"no weights of {args.backbone} ({error}): pass --weights and a file") from error
    network.reset_classifier(128)
    if args.weights not in ("timm", "none"):
        load_weights(network, Path(args.weights), args.weights_by_order)
    return network


def load_weights(network: Any, path: Path, by_order: bool) -> None:
    """Loads a file of weights by name, without its last layer where that is of another size.

    Raises:
        ValueError: the file holds no weights, or those of another network; it says which names do not match.
    """
    if not path.is_file():
        raise ValueError(f"--weights {path}: there is no such file; pass a file, timm or none")
    try:  # also of {"state_dict": ...}, {"model": ...}, safetensors, and names with the prefix of a wrapper
        found = dict(timm.models.load_state_dict(str(path)))
    except Exception as error:  # of whatever library reads it
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"--weights {path} cannot be read as a file of weights: {reason}") from error
    if not found or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ValueError(f"--weights {path} holds no weights, but {', '.join(map(str, list(found)[:5]))}")
    own = network.state_dict()
    last = network.pretrained_cfg.get("classifier") or ()
    lasts = tuple(f"{name}." for name in ([last] if isinstance(last, str) else last))
    if by_order:  # without the counters of batch normalization, which old files do not have
        own_names, found_names = ([x for x in names if not x.endswith("tracked")] for names in (own, found))
        if len(own_names) != len(found_names):
            raise ValueError(
                f"--weights-by-order: {path} holds {len(found_names)} tensors and the network "
                f"{len(own_names)}; pass the --backbone that the file is of"
            )
        found = dict(zip(own_names, (found[name] for name in found_names), strict=True))
    found = {
        name: value
        for name, value in found.items()
        if not name.startswith(lasts) or (name in own and own[name].shape == value.shape)
    }
    missing = [x for x in own if x not in found and not x.startswith(lasts) and not x.endswith("tracked")]
    unknown = [name for name in found if name not in own]
    shapes = [name for name in found if name in own and found[name].shape != own[name].shape]
    problems = {"missing": missing, "not in the network": unknown, "of another shape": shapes}
    if any(problems.values()):
        listed = "; ".join(
            f"{len(names)} {problem} ({', '.join(names[:2])}{', …' if names[2:] else ''})"
            for problem, names in problems.items()
            if names
        )
        raise ValueError(
            f"--weights {path} does not match by name: {listed}. Pass the --backbone that it is of, or "
            "--weights-by-order if it lists the same layers in the same order"
        )
    network.load_state_dict(found, strict=False)


def freeze_first_stages(network: Any, num_trained: int) -> None:
    """Leaves the last stages to train, and the layer that makes the embeddings."""
    stages = timm.models.group_modules(network, network.group_matcher(coarse=True), return_values=True)
    for number in sorted(stages)[: -num_trained - 1]:
        for layer in stages[number]:
            layer.requires_grad_(False)
            freeze_batch_norm(layer)


def build_data(args: argparse.Namespace, network: Any) -> tuple[Any, Any, torch.Tensor]:
    """Returns the training images, those of the other classes, and the labels of the former."""
    if args.glyphs:
        scale = transforms.ConvertImageDtype(torch.float32)
        augment = transforms.Compose([transforms.RandomAffine(15, (0.1, 0.1), (0.8, 1.2)), scale])
        glyphs = Glyphs("train", augment)
        return glyphs, Glyphs("test", scale), glyphs.labels
    config = timm.data.resolve_model_data_config(network) | {"input_size": (3, args.size, args.size)}
    augment = timm.data.create_transform(**config, is_training=True, scale=(0.3, 1.0))
    folder = datasets.ImageFolder(str(args.data), timm.data.create_transform(**config | {"crop_pct": 1.0}))
    labels = torch.tensor(folder.targets)
    order = torch.randperm(len(folder.classes), generator=torch.Generator().manual_seed(0))
    is_trained = torch.isin(labels, order[: len(order) // 2])
    train_set = data.Subset(
        datasets.ImageFolder(str(args.data), augment), is_trained.nonzero().flatten().tolist()
    )
    return train_set, data.Subset(folder, (~is_trained).nonzero().flatten().tolist()), labels[is_trained]


def draw_neighbours(test_set: Any, rows: torch.Tensor, labels: torch.Tensor, path: Path) -> None:
    """Draws six queries, and the five nearest images of each, crossed out if of another class."""
    figure = Figure((9, 9), layout="constrained")
    queries = torch.linspace(0, len(rows) - 1, 6).long().tolist()
    for row, query in zip(figure.subplots(6, 6), queries, strict=True):
        similarity = rows @ rows[query]
        similarity[query] = torch.inf
        for axes, index in zip(row, similarity.topk(6).indices.tolist(), strict=True):
            image = test_set[index][0].permute(1, 2, 0).numpy()
            axes.imshow((image - image.min()) / max(1e-6, image.max() - image.min()), cmap="gray")
            axes.axis("off")
            if labels[index] != labels[query]:
                axes.plot([0, 1], [0, 1], color="red", transform=axes.transAxes)
    figure.savefig(path)


CENTRED = {"match_std": False, "batch_loss_weight": 1.0}
# Batch size -> rate without a memory, rate with one, and its settings: what was best in the study with frozen
# batch normalization and AdamW, where the last stage of the network trained.
BEST: dict[int, tuple[float, float, dict[str, Any]]] = {
    8: (1e-4, 3e-5, {}),
    16: (1e-4, 1e-4, {}),
    32: (3e-4, 1e-4, {}),
    64: (3e-4, 3e-4, CENTRED),
    256: (1e-3, 3e-4, {}),
}


def main(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = build_network(args)
    train_set, test_set, labels = build_data(args, network)
    is_pretrained = not args.glyphs and args.weights != "none"
    if (args.batch_norm or ("frozen" if is_pretrained else "trains")) == "frozen":
        print(f"{freeze_batch_norm(network)} layers of batch normalization are frozen")
    if args.stages is not None:
        freeze_first_stages(network, args.stages)
    network.to(device).train()
    model = GradCache(network, args.part_size or args.batch_size)
    loss: Any = losses.SupConLoss(temperature=0.1)
    memory_size = args.memory_size
    if memory_size is None:
        memory_size = max(args.batch_size, len(labels) // 2)
    size = next((size for size in BEST if size >= args.batch_size), max(BEST))
    rate, rate_with_memory, settings = BEST[size]
    loss_fn = XBNWrapper(loss, 128, memory_size, **settings) if memory_size else BatchLoss(loss)
    if memory_size:
        rate = rate_with_memory
    if not is_pretrained:
        rate = 1e-3
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, args.rate or rate)
    falls = [int(0.6 * args.epochs), int(0.85 * args.epochs)]
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, gamma=0.2)
    batches = ClassBatches(labels, args.images_per_class, args.batch_size)
    loader = data.DataLoader(train_set, batch_sampler=batches, num_workers=args.workers)
    tester = testers.BaseTester(batch_size=64, dataloader_num_workers=args.workers, data_device=device)
    names = {"precision_at_1": "Recall@1", "mean_average_precision_at_r": "MAP@R"}
    calculator = AccuracyCalculator(include=tuple(names), k="max_bin_count", device=torch.device("cpu"))
    args.output.mkdir(parents=True, exist_ok=True)
    history: list[dict[str, float]] = []
    for epoch in range(args.epochs + 1):  # the first measures what training begins with
        batches.set_epoch(epoch)
        images, noise = torch.empty(0), ""
        for images_now, labels_now in tqdm(loader, f"epoch {epoch}", leave=False) if epoch else ():
            before, images = images, images_now.to(device)
            loss = loss_fn(model(images), labels_now.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch:
            scheduler.step()
            if len(before) == len(images):
                noise = f"; {batch_noise(network, before, images)}"
        rows, found = tester.get_all_embeddings(test_set, network)
        network.train()
        history.append(calculator.get_accuracy(rows, found.squeeze(1)))
        print(f"epoch {epoch}: " + ", ".join(f"{names[x]} {100 * history[-1][x]:.1f}" for x in names) + noise)
        if history[-1]["precision_at_1"] == max(one["precision_at_1"] for one in history):
            torch.save(network.state_dict(), args.output / "best.pt")
            draw_neighbours(test_set, rows.cpu(), found.squeeze(1).cpu(), args.output / "neighbours.png")
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    for name, title in names.items():
        axes.plot([100 * one[name] for one in history], label=title)
    axes.set(xlabel="epoch", ylabel="per cent, held-out classes")
    axes.legend()
    figure.savefig(args.output / "curve.png")


if __name__ == "__main__":
    try:
        main(args)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
