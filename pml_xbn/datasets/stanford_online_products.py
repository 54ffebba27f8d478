"""Stanford Online Products."""

from __future__ import annotations

from .annotation_files import Columns, number_up_to, read_rows, relative_path
from .image_dataset import Annotation, ImageDataset
from .pml_datasets import download

_SUPERCLASSES = (
    "bicycle",
    "cabinet",
    "chair",
    "coffee_maker",
    "fan",
    "kettle",
    "lamp",
    "mug",
    "sofa",
    "stapler",
    "table",
    "toaster",
)


class StanfordOnlineProducts(ImageDataset):
    """Stanford Online Products: products of an online auction, with a few photos each.

    Splits ``"train"`` (59,551 images of 11,318 products) and ``"test"`` (60,502 of 11,316 others). The
    superclass is one of 12 kinds of product. The class of pytorch-metric-learning of the same name
    does not have those; files lie where that one has them, in ``Stanford_Online_Products`` in
    ``root``, and ``download=True`` uses it (from version 2.8 on).

    Source: Oh Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016,
    https://cvgl.stanford.edu/projects/lifted_struct/.

    Args, Attributes, Raises: as `ImageDataset`; ``label_names`` are the class ids.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from pml_xbn.datasets import StanfordOnlineProducts
        >>> with TemporaryDirectory() as root:
        ...     folder = Path(root, "Stanford_Online_Products")
        ...     (folder / "sofa_final").mkdir(parents=True)
        ...     (folder / "sofa_final" / "7_0.JPG").touch()
        ...     _ = (folder / "Ebay_train.txt").write_text(
        ...         "image_id class_id super_class_id path\\n1 7 9 sofa_final/7_0.JPG"
        ...     )
        ...     dataset = StanfordOnlineProducts(root, "train")
        >>> dataset.labels, dataset.superclasses, dataset.superclass_names[8]
        (tensor([0]), tensor([8]), 'sofa')
    """

    title = "Stanford Online Products"
    homepage = "https://cvgl.stanford.edu/projects/lifted_struct/"
    official_counts = (59_551, 60_502)

    def _read(self) -> Annotation:
        folder = self.root / "Stanford_Online_Products"
        path = self._existing(folder / f"Ebay_{self.split}.txt")
        columns: Columns = {
            "image_id": int,
            "class_id": int,
            "super_class_id": number_up_to(len(_SUPERCLASSES)),
            "path": relative_path,
        }
        rows = read_rows(path, columns, header_line=1)

        superclass_of: dict[int, int] = {}
        for line, (_, product, kind, _) in enumerate(rows, 2):
            if superclass_of.setdefault(product, kind - 1) != kind - 1:
                raise ValueError(f"{path}, line {line}: class {product} has a second super class, {kind}")
        return Annotation(
            classes=[product for _, product, _, _ in rows],
            class_names={product: str(product) for product in superclass_of},
            paths=[folder / image for *_, image in rows],
            superclasses=superclass_of,
            superclass_names=_SUPERCLASSES,
        )

    def _download(self) -> None:
        download(self.title, "StanfordOnlineProducts", self.root, "Stanford_Online_Products")
