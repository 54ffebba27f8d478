"""Searches a folder of images with the network that examples/fine_tune.py has trained.

--index embeds all images of a folder, and saves their vectors and paths (vectors.npz) and an index of faiss
(index.faiss) in the folder of the run. If the folder holds the classes that measured the run, it also gives
their Recall@1, which is that of the run. --query lists and draws the images that are nearest to one.

    python examples/search.py runs/fine_tune/RUN --index data/products --query data/products/a/1.jpg
    python examples/search.py runs/fine_tune/RUN --query photo.jpg
"""

import argparse
import csv
import hashlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from pml_xbn.training import Encoder, find_images, load_encoder, open_image, unreadable_images


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")  # one line, without the usage


parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
parser.add_argument("run", type=Path, nargs="?", help="folder of a run of examples/fine_tune.py")
parser.add_argument("--index", type=Path, help="folder of images to search in (that of the last time)")
parser.add_argument("--query", type=Path, help="image to search for")
parser.add_argument("--k", type=int, default=5, help="images to find (%(default)s)")
parser.add_argument("--workers", type=int, default=2, help="processes that load images (%(default)s)")
parser.add_argument("--skip-bad", action="store_true", help="leave out images that cannot be read")
args = parser.parse_args()
# Behind the flags, so that --help needs none of them.
if hasattr(sys.stdout, "reconfigure"):  # names that it cannot encode are no reason to stop
    sys.stdout.reconfigure(errors="backslashreplace")
for package in ("faiss", "matplotlib", "PIL", "timm", "torchvision"):
    if find_spec(package) is None:
        raise SystemExit(f'{package} is missing: pip install ".[examples]"')

import faiss
from matplotlib.figure import Figure
from PIL import ImageOps


def parts_of(run: Path) -> dict[str, str]:
    """Returns of the images of a run what part of the data they were: train, choose or measure."""
    path = run / "images.csv"
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row["path"]: row["part"] for row in csv.DictReader(file)}


def build_index(encoder: Encoder, args: argparse.Namespace) -> None:
    """Embeds the images of a folder, and saves vectors, paths and index beside the run."""
    paths = find_images(args.index)
    bad = unreadable_images(paths, args.workers)
    if bad and not args.skip_bad:
        raise ValueError(
            f"{len(bad)} of {len(paths)} images cannot be read, mend them or pass --skip-bad: "
            + "; ".join(reason.splitlines()[0] for reason in list(bad.values())[:10])
        )
    paths = [Path(os.path.abspath(path)) for path in paths if path not in bad]
    if not paths:
        raise ValueError(f"--index {args.index} holds no image that can be read")
    vectors = encoder.embed(paths, workers=args.workers, title="embedding")
    # Vectors of unit length: their inner product is the cosine.
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors.numpy())
    names, weights = [str(path) for path in paths], digest(args.run)
    np.savez(args.run / "unfinished.npz", vectors=vectors.numpy(), paths=names, weights=weights)
    faiss.write_index(index, str(args.run / "unfinished.faiss"))
    os.replace(args.run / "unfinished.npz", args.run / "vectors.npz")  # whole, if they have these names
    os.replace(args.run / "unfinished.faiss", args.run / "index.faiss")
    print(f"{len(paths)} images of {args.index} in {args.run}/index.faiss and vectors.npz")

    classes = {name: label for label, name in enumerate(encoder.classes.get("measure", []))}
    root = os.path.abspath(args.index)
    of_paths = [path.relative_to(root).parts[0] for path in paths]
    parts = parts_of(args.run)  # a class that trained may have the name of one in another folder
    measured = [
        number
        for number, name in enumerate(of_paths)
        if name in classes and parts.get(str(paths[number]), "measure") == "measure"
    ]
    if measured:
        labels = torch.tensor([classes[of_paths[number]] for number in measured])
        calculator = AccuracyCalculator(include=("precision_at_1",), k=1, device=torch.device("cpu"))
        recall_at_1 = calculator.get_accuracy(vectors[measured], labels)["precision_at_1"]
        print(
            f"Recall@1 {100 * recall_at_1:.1f} on the {len(set(labels.tolist()))} classes that chose nothing"
        )


def digest(run: Path) -> str:
    """Returns by what the weights of a run can be told from those of a later epoch."""
    return hashlib.sha256((run / "best.pt").read_bytes()).hexdigest()


def search(encoder: Encoder, args: argparse.Namespace) -> None:
    """Prints and draws the images that are nearest to the query, without the query itself."""
    if not (args.run / "index.faiss").is_file():
        raise ValueError(f"{args.run} has no index yet: pass --index and a folder of images")
    try:
        index = faiss.read_index(str(args.run / "index.faiss"))
        saved = np.load(args.run / "vectors.npz")
        paths, weights = saved["paths"].tolist(), str(saved["weights"])
    except Exception as error:  # of faiss, zipfile or NumPy
        raise ValueError(
            f"the index of {args.run} cannot be read: pass --index and a folder of images"
        ) from error
    if weights != digest(args.run) or index.ntotal != len(paths):
        raise ValueError(f"{args.run} has other weights than its index: pass --index and the folder again")
    query = encoder.eval()([args.query])
    similarities, numbers = (row[0].tolist() for row in index.search(query.cpu().numpy(), args.k + 1))
    found = [
        (similarity, paths[number])
        for similarity, number in zip(similarities, numbers, strict=True)
        if number >= 0 and paths[number] != os.path.abspath(args.query)
    ][: args.k]
    for similarity, path in found:
        print(f"{similarity:.3f} {path}")
    picture = args.run / f"neighbours_of_{args.query.parent.name}_{args.query.stem}.png"
    draw(args.query, found, picture)
    print(f"drawn in {picture}")


def draw(query: Path, found: Sequence[tuple[float, str]], picture: Path) -> None:
    figure = Figure((2 * (len(found) + 1), 3), layout="constrained")
    shown = [("query", str(query)), *((f"{similarity:.2f}", path) for similarity, path in found)]
    for axes, (title, path) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        axes.imshow(ImageOps.pad(open_image(path), (320, 320), color="white"))
        name = f"{Path(path).parent.name[:18]}/\n{Path(path).name[:18]}"
        axes.set(title=title, xlabel=name.encode(errors="replace").decode(), xticks=[], yticks=[])
        axes.xaxis.label.set_parse_math(False)  # a name may hold a dollar
    figure.savefig(picture)


def main(args: argparse.Namespace) -> None:
    if args.run is None:
        raise ValueError("the folder of a run is missing: pass it, such as runs/fine_tune/RUN")
    if not args.run.is_dir():
        raise ValueError(f"{args.run} is no folder: pass that of a run, such as runs/fine_tune/RUN")
    if args.index is None and args.query is None:
        raise ValueError("there is nothing to do: pass --index and a folder, --query and an image, or both")
    if args.k < 1 or args.workers < 0:
        raise ValueError(f"--k {args.k} and --workers {args.workers}: pass at least 1, and 0")
    if args.query is not None:
        open_image(args.query)  # before the folder is embedded
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = load_encoder(args.run).to(device)
    if args.index is not None:
        build_index(encoder, args)
    if args.query is not None:
        search(encoder, args)


if __name__ == "__main__":
    try:
        main(args)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        raise SystemExit(2) from error
