"""Writes the datasets of the papers in their own formats, with a handful of images each."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

WIDTH, HEIGHT = 12, 10
COLOUR = (200, 40, 90)


def write_image(path: Path, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (WIDTH, HEIGHT), COLOUR if mode == "RGB" else 40).save(path, format="JPEG")


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


IN_SHOP = [
    ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
    ("img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "train"),
    ("img/MEN/Denim/id_00000080/01_1_front.jpg", "id_00000080", "gallery"),
    ("img/MEN/Denim/id_00000080/01_2_side.jpg", "id_00000080", "query"),
    ("img/WOMEN/Denim/id_00000005/01_1_front.jpg", "id_00000005", "train"),
    ("img/WOMEN/Skirts/id_00000011/03_4_full.jpg", "id_00000011", "gallery"),
    ("img/WOMEN/Dresses/id_00000009/01_1_front.jpg", "id_00000009", "query"),
    ("img/WOMEN/Dresses/id_00000009/01_3_back.jpg", "id_00000009", "gallery"),
]


def in_shop_lines(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """With the padding of the real file."""
    columns = [f"{image:<70} {item} {status}" for image, item, status in rows]
    return [str(len(rows)), "image_name item_id evaluation_status", *columns]


def write_in_shop(root: Path, rows: Sequence[tuple[str, str, str]] = IN_SHOP) -> None:
    write_lines(root / "Eval" / "list_eval_partition.txt", in_shop_lines(rows))
    for image, _, _ in rows:
        write_image(root / "Img" / image)


EBAY_TRAIN = [
    "1 1 1 bicycle_final/111085122871_0.JPG",
    "2 1 1 bicycle_final/111085122871_1.JPG",
    "3 2 12 toaster_final/111265328556_0.JPG",
    "4 2 12 toaster_final/111265328556_1.JPG",
]
EBAY_TEST = [
    "5 11320 9 sofa_final/221705461164_0.JPG",
    "6 11319 1 bicycle_final/251952414262_0.JPG",
    "7 11319 1 bicycle_final/251952414262_1.JPG",
]


def write_stanford_online_products(root: Path) -> None:
    folder = root / "Stanford_Online_Products"
    for split, rows in (("train", EBAY_TRAIN), ("test", EBAY_TEST)):
        write_lines(folder / f"Ebay_{split}.txt", ["image_id class_id super_class_id path", *rows])
        for row in rows:
            write_image(folder / row.split()[-1], "L")  # some of the real ones are grey


VEHICLES = {
    "train_list.txt": [("0008241", 21), ("0000005", 3), ("0007020", 21)],
    "test_list_800.txt": [(f"{i:07}", vehicle) for i, vehicle in enumerate([44, 7, 44, 44, 7, 9], 1000)],
    "test_list_1600.txt": [(f"{i:07}", vehicle) for i, vehicle in enumerate([50, 51, 51], 2000)],
    "test_list_2400.txt": [(f"{i:07}", vehicle) for i, vehicle in enumerate([60, 60, 61], 3000)],
}


def write_vehicle_list(root: Path, name: str, rows: Sequence[tuple[str, int]]) -> None:
    write_lines(root / "train_test_split" / name, [f"{image} {vehicle}" for image, vehicle in rows])
    for image, _ in rows:
        write_image(root / "image" / f"{image}.jpg")


def write_vehicle_id(root: Path) -> None:
    for name, rows in VEHICLES.items():
        write_vehicle_list(root, name, rows)


def clothing(category: int, style: int, box: Sequence[int] = (2, 1, 8, 9)) -> dict[str, Any]:
    """An item with the keys that the real annotations have."""
    return {
        "category_name": "",
        "category_id": category,
        "style": style,
        "bounding_box": list(box),
        "landmarks": [5, 5, 2],
        "segmentation": [[2, 1, 8, 1, 8, 9]],
        "scale": 2,
        "occlusion": 1,
        "zoom_in": 1,
        "viewpoint": 2,
    }


DEEP_FASHION_2: dict[str, list[dict[str, Any]]] = {
    "train": [
        {"item2": clothing(8, 0), "source": "user", "pair_id": 1, "item1": clothing(1, 1)},
        {"source": "shop", "pair_id": 1, "item1": clothing(1, 1, (0, 0, 12, 10))},
        {"source": "shop", "pair_id": 2, "item1": clothing(9, 2), "item2": clothing(1, 2)},
    ],
    "validation": [
        {"source": "user", "pair_id": 7, "item1": clothing(10, 3), "item2": clothing(7, 0)},
        {"source": "shop", "pair_id": 7, "item1": clothing(10, 3), "item2": clothing(10, 1)},
        {"source": "user", "pair_id": 5, "item1": clothing(13, 1)},
        {"source": "shop", "pair_id": 5, "item1": clothing(13, 1), "item2": clothing(6, 0)},
    ],
}


def write_deep_fashion_2(root: Path) -> None:
    for split, images in DEEP_FASHION_2.items():
        for number, annotation in enumerate(images, 1):
            write_lines(root / split / "annos" / f"{number:06}.json", [json.dumps(annotation)])
            write_image(root / split / "image" / f"{number:06}.jpg")


CUB_IMAGES = [
    (1, "001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg"),
    (1, "001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg"),
    (100, "100.Brown_Pelican/Brown_Pelican_0122_94022.jpg"),
    (101, "101.White_Pelican/White_Pelican_0025_95832.jpg"),
    (200, "200.Common_Yellowthroat/Common_Yellowthroat_0003_190521.jpg"),
]


def write_cub(root: Path) -> None:
    folder = root / "CUB_200_2011"
    write_lines(folder / "images.txt", [f"{i} {name}" for i, (_, name) in enumerate(CUB_IMAGES, 1)])
    write_lines(folder / "image_class_labels.txt", [f"{i} {c}" for i, (c, _) in enumerate(CUB_IMAGES, 1)])
    for _, name in CUB_IMAGES:
        write_image(folder / "images" / name)


CAR_NAMES = [f"Maker Model {number} 2012" for number in range(1, 197)]
CAR_NAMES[97], CAR_NAMES[98] = "Ram C/V Cargo Van Minivan 2012", "Eagle Talon Hatchback 1998"
CARS = {
    "train": [("00001.jpg", 14), ("00002.jpg", 98), ("00003.jpg", 196)],
    "test": [("00001.jpg", 14), ("00002.jpg", 99)],
}


def write_cars196(root: Path) -> None:
    write_lines(root / "names.csv", CAR_NAMES)
    for part, images in CARS.items():
        write_lines(root / f"anno_{part}.csv", [f"{image},3,4,10,9,{number}" for image, number in images])
        for image, number in images:
            name = CAR_NAMES[number - 1].replace("/", "-")
            write_image(root / "car_data" / "car_data" / part / name / image)


def write_cars196_devkit(root: Path) -> None:
    """In MATLAB's format, as the authors publish it."""
    write_mat(root / "devkit" / "cars_meta.mat", "class_names", np.array(CAR_NAMES, dtype=object))
    for part, name in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        write_car_annotations(root / name, CARS[part])
        for image, _ in CARS[part]:
            write_image(root / f"cars_{part}" / image)


def write_car_annotations(path: Path, images: Sequence[tuple[str, int]]) -> None:
    box = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2"]
    rows = [(3, 4, 10, 9, number, image) for image, number in images]
    columns = [(name, object) for name in (*box, "class", "fname")]
    write_mat(path, "annotations", np.array(rows, dtype=columns))


def write_mat(path: Path, key: str, rows: np.ndarray) -> None:
    """One row of many columns, as in the real files."""
    from scipy.io import savemat

    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {key: rows[None]})


CIFAR_PIXELS = np.arange(3 * 3072, dtype=np.uint32).reshape(3, 3072).astype(np.uint8)
FINE_NAMES = [f"fine {number}" for number in range(100)]
COARSE_NAMES = [f"coarse {number}" for number in range(20)]


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    folder = root / "cifar-10-batches-py"
    md5 = {
        name: write_pickle(folder / name, {"data": CIFAR_PIXELS, "labels": [number, 9, 0]})
        for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], 1)
    }
    meta = write_pickle(folder / "batches.meta", {"label_names": [f"class {i}" for i in range(10)]})
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5[name]] for name in list(md5)[:5]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": meta})


def write_cifar100(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR100

    folder = root / "cifar-100-python"
    test_fine = list(range(100))
    test = {
        "data": np.zeros((100, 3072), np.uint8),
        "fine_labels": test_fine,
        "coarse_labels": [coarse_of(fine) for fine in test_fine],
    }
    train = {"data": CIFAR_PIXELS, "fine_labels": [99, 4, 4], "coarse_labels": [coarse_of(99), 8, 8]}
    meta = {"fine_label_names": FINE_NAMES, "coarse_label_names": COARSE_NAMES}
    monkeypatch.setattr(CIFAR100, "train_list", [["train", write_pickle(folder / "train", train)]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", write_pickle(folder / "test", test)]])
    monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": write_pickle(folder / "meta", meta)})


def coarse_of(fine: int) -> int:
    return 7 * fine % 20  # mixed up, as in the real files


def write_pickle(path: Path, content: object) -> str:
    """Returns the MD5 checksum, which torchvision compares."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))
    return hashlib.md5(path.read_bytes()).hexdigest()


# Who writes the tiny files of a data set into its folder; those of CIFAR also set the checksums to expect.
WRITERS: dict[str, Callable[..., None]] = {
    "CIFAR10": write_cifar10,
    "CIFAR100": write_cifar100,
    "CUB": write_cub,
    "Cars196": write_cars196,
    "DeepFashion2": write_deep_fashion_2,
    "InShop": write_in_shop,
    "StanfordOnlineProducts": write_stanford_online_products,
    "VehicleID": write_vehicle_id,
}
