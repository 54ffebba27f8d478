from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pml_xbn.training import Encoder, load_encoder

image = pytest.importorskip("PIL.Image")
numpy = pytest.importorskip("numpy")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for number, path in enumerate(paths):
        image.effect_noise((20 + 4 * number, 16), 90).convert("RGB").save(path)
    return paths


def encoder_of(size: int = 16) -> Encoder:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.BatchNorm1d(8))
    network(torch.randn(4, 3, size, size))
    return Encoder(network, size)


def test_an_image_of_the_right_size_is_only_scaled_in_colour(files: list[Path]) -> None:
    pixels = torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    mean, std = (
        torch.tensor(x, dtype=torch.float64).view(3, 1, 1)
        for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    torch.testing.assert_close(
        encoder_of().prepare(pixels).double(), (pixels.double() / 255 - mean) / std, rtol=1e-5, atol=1e-6
    )


def test_the_middle_of_a_wide_image_is_taken() -> None:
    pixels = torch.zeros(3, 16, 48, dtype=torch.uint8)
    pixels[:, :, 16:32] = 255
    prepared = Encoder(nn.Identity(), 16, mean=(0.0,) * 3, std=(1.0,) * 3).prepare(pixels)
    assert (prepared == 1).all()


def test_files_images_and_tensors_are_embedded_alike(files: list[Path]) -> None:
    encoder = encoder_of().eval()
    opened = [image.open(path) for path in files]
    tensors = [torch.from_numpy(numpy.array(one)).permute(2, 0, 1) for one in opened]
    embeddings = encoder(files)
    assert torch.equal(embeddings, encoder(opened))
    assert torch.equal(embeddings, encoder(tensors))
    assert torch.equal(embeddings, encoder([str(path) for path in files]))
    norms = embeddings.double().norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("workers", [0, 1])
def test_many_files_are_embedded_in_evaluation_mode(files: list[Path], workers: int) -> None:
    encoder = encoder_of().train()
    rows = encoder.embed(files, batch_size=2, workers=workers)
    assert encoder.training
    assert encoder.network.training
    assert not rows.requires_grad
    torch.testing.assert_close(rows, encoder.eval()(files).detach())


def test_modes_are_as_they_were_after_many_files(files: list[Path]) -> None:
    network = encoder_of().network.eval()
    encoder = Encoder(network, 16)
    encoder.embed(files)
    assert not network.training
    assert not encoder.training
    network.train()
    network[2].eval()
    encoder.embed(iter(files))
    assert [part.training for part in network] == [True, True, False]


def test_an_encoder_may_be_of_half_precision_or_without_parameters(files: list[Path]) -> None:
    encoder = encoder_of().eval()
    expected = encoder(files)
    torch.testing.assert_close(encoder.bfloat16()(files), expected, rtol=0.05, atol=0.05)
    assert Encoder(nn.Flatten(), 4)(files).shape == (5, 48)


def test_wrong_images_are_named(files: list[Path]) -> None:
    encoder = encoder_of()
    for embed in (encoder, encoder.embed):
        with pytest.raises(TypeError, match="pass a list of images"):
            embed(str(files[0]))
    with pytest.raises(ValueError, match="more than 8 bits"):
        encoder([image.new("I;16", (16, 16), 40_000)])
    with pytest.raises(ValueError, match=r"torch.float32 and shape \(3, 16, 16\): pass uint8"):
        encoder([torch.zeros(3, 16, 16)])
    with pytest.raises(ValueError, match="there is no image to embed"):
        encoder.embed([])
    with pytest.raises(ValueError, match="size=0"):
        Encoder(nn.Identity(), 0)
    with pytest.raises(ValueError, match="three numbers each"):
        Encoder(nn.Identity(), 8, mean=(0.5,))


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("timm", exc_type=ImportError)
    with pytest.raises(FileNotFoundError, match=r"there is no .*best\.pt: pass the folder of a run"):
        load_encoder(tmp_path)
    (tmp_path / "best.pt").write_text("no weights")
    with pytest.raises(ValueError, match=r"is not the best\.pt of a run"):
        load_encoder(tmp_path)
    torch.save({"state_dict": {}}, tmp_path / "best.pt")
    with pytest.raises(ValueError, match=r"is not the best\.pt of a run \('encoder'\)"):
        load_encoder(tmp_path)
    settings = {"embedding_size": 8, "size": 32, "classes": {}}
    for backbone, reason in (("nothing", "Unknown model"), ("test_resnet", "Error.* loading state_dict")):
        torch.save({"state_dict": {}, "encoder": {"backbone": backbone, **settings}}, tmp_path / "best.pt")
        with pytest.raises(ValueError, match=rf"is not the best\.pt of a run \({reason}"):
            load_encoder(tmp_path)


@pytest.mark.parametrize("backbone", ["test_resnet", "test_vit"])
def test_an_encoder_is_loaded_as_it_was_saved(backbone: str, files: list[Path], tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", exc_type=ImportError)
    network = timm.create_model(backbone, num_classes=8)
    if hasattr(network, "set_input_size"):
        network.set_input_size(img_size=64)
    settings = {"size": 64, "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bilinear"}
    encoder = Encoder(network, classes={"train": ["a"]}, **settings)
    saved = {**settings, "backbone": backbone, "embedding_size": 8, "classes": encoder.classes}
    torch.save({"state_dict": network.state_dict(), "encoder": saved}, tmp_path / "best.pt")
    for run in (tmp_path, tmp_path / "best.pt"):
        loaded = load_encoder(run)
        assert loaded.classes == {"train": ["a"]}
        assert not loaded.training
        assert torch.equal(loaded(files), encoder.eval()(files))
        assert not loaded(files).requires_grad
