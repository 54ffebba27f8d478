"""In-shop Clothes Retrieval."""

from __future__ import annotations

from pathlib import PurePosixPath

from .annotation_files import Columns, one_of, read_lines, read_rows, relative_path
from .image_dataset import Annotation, ImageDataset


class InShop(ImageDataset):
    """In-shop Clothes Retrieval: the photos that a shop shows of a piece of clothing.

    Splits ``"train"`` (25,882 images of 3,997 items), ``"query"`` (14,218 of 3,985) and ``"gallery"``
    (12,612 of the same 3,985). The superclass is the folder of the category (``Dresses``, ``Denim``,
    ...), as in the thesis (§5.1.2), so men's and women's trousers share one.

    Needs ``Eval/list_eval_partition.txt`` (or the same file in ``root``) and the images of ``img.zip`` or
    ``img_highres.zip``, unpacked in ``Img`` or in ``root``: ``img`` is read where it is there, else
    ``img_highres``, the same photos in their original size. The list calls them ``img/...`` either way.

    Source: Liu et al., DeepFashion: Powering Robust Clothes Recognition and Retrieval with Rich
    Annotations, CVPR 2016, https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html.

    Args, Attributes, Raises: as `ImageDataset`; ``label_names`` are the item ids.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from pml_xbn.datasets import InShop
        >>> with TemporaryDirectory() as root:
        ...     image = "img/WOMEN/Dresses/id_00000002/02_1_front.jpg"
        ...     Path(root, image).parent.mkdir(parents=True)
        ...     Path(root, image).touch()
        ...     _ = Path(root, "list_eval_partition.txt").write_text(
        ...         f"1\\nimage_name item_id evaluation_status\\n{image} id_00000002 train"
        ...     )
        ...     dataset = InShop(root, "train")
        >>> dataset.label_names, dataset.superclass_names
        (['id_00000002'], ['Dresses'])
    """

    title = "In-shop Clothes Retrieval"
    homepage = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html"
    splits = ("train", "query", "gallery")
    evaluation = ("query", "gallery")
    official_counts = (25_882, 14_218, 12_612)

    def _read(self) -> Annotation:
        name = "list_eval_partition.txt"
        path = self._existing(self.root / "Eval" / name, self.root / name)
        columns: Columns = {
            "image_name": _image_name,
            "item_id": str,
            "evaluation_status": one_of(*self.splits),
        }
        rows = read_rows(path, columns, header_line=2)
        count = read_lines(path)[0].strip()
        if count != str(len(rows)):
            raise ValueError(
                f"{path}, line 1: it says {count!r}, but {len(rows)} images follow; unpack it again"
            )

        # Of an item in several categories the first one counts, so read from the end.
        category_of = {item: image.parts[-3] for image, item, _ in reversed(rows)}
        categories = sorted(set(category_of.values()))
        shares_labels = ("train",) if self.split == "train" else self.evaluation
        folders = [self.root / parent / name for name in ("img", "img_highres") for parent in ("Img", "")]
        images = self._existing(*folders)
        return Annotation(
            classes=[item for _, item, status in rows if status == self.split],
            class_names={item: item for _, item, status in rows if status in shares_labels},
            paths=[images.joinpath(*image.parts[1:]) for image, _, status in rows if status == self.split],
            superclasses={item: categories.index(category) for item, category in category_of.items()},
            superclass_names=categories,
        )


def _image_name(text: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if len(path.parts) != 5 or path.parts[0] != "img":
        raise ValueError("an image is img/<gender>/<category>/<item>/<file>")
    relative_path(text)
    return path
