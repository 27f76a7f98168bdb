from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fuzzing import seeds
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection import export
from mpfm_kedro.inspection.export import (
    NETWORK,
    ExportedModel,
    export_model,
    measure_parity,
    open_network,
    run_network,
)
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.model import CARD, Model, load_model, model_digest, save_model
from production_models import made_image, made_model

EXAMPLE = Path(__file__).parents[2] / "examples/inspect_onnx.py"
SIZES = [(48, 48), (48, 48), (63, 64), (97, 33), (33, 161), (1, 5), (301, 211)]

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


def images(sizes: list[tuple[int, int]] = SIZES) -> list[tuple[str, Image.Image]]:
    rng = np.random.default_rng(2)
    return [(f"{place}", made_image(rng, size, defect=bool(place % 2))) for place, size in enumerate(sizes)]


def test_an_exported_model_of_two_backbones_says_what_the_inspector_says():
    model = made_model(("resnet18", 64), ("squeezenet1_1", 75))
    inspector, network = Inspector(model, "cpu"), ExportedModel(model)
    rng = np.random.default_rng(1)
    modes = set()
    for place, size in enumerate([*SIZES, (64, 64), (1, 1), (1, 90), (200, 1)]):
        drawn = [made_image(rng, size, defect=bool(place % 2)) for _ in range(3)]
        with torch.inference_mode():
            found = network(torch.from_numpy(np.stack([np.asarray(image) for image in drawn])))
        for i, expected in enumerate(inspector.predict_many(drawn)):
            assert found.score[i] == pytest.approx(expected.score, abs=1e-3)
            np.testing.assert_allclose(found.heat_map[i], expected.heat_map, atol=1e-3)
            np.testing.assert_allclose(found.parts[i], list(expected.parts.values()), rtol=1e-3, atol=1e-3)
            assert found.mode[i] == expected.mode
            modes.add(expected.mode)
    assert modes == {0, 1}


def test_a_model_that_knows_no_anomaly_is_exported_too():
    model = made_model()
    alone = replace(model, detector={name: piece for name, piece in model.detector.items() if name != "training"})
    image = made_image(np.random.default_rng(1))
    with torch.inference_mode():
        found = ExportedModel(alone)(torch.from_numpy(np.array(image))[None])
    assert found.score[0] == pytest.approx(Inspector(alone, "cpu").predict(image).score, abs=1e-3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("made") / "model"
    save_model(made_model(), folder)
    return load_model(folder)


@pytest.fixture(scope="module")
def exported(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "export"
    parity = export_model(model, images(), folder)
    assert parity.images == len(SIZES) and parity.flips == () and 0 < parity.score < 1e-2
    return folder


def test_the_export_is_one_file_and_a_card(exported: Path, model: Model):
    assert sorted(file.name for file in exported.iterdir()) == [CARD, NETWORK]
    assert list(exported.parent.iterdir()) == [exported]
    card = json.loads((exported / CARD).read_text())
    assert {name: card[name] for name in model.card} == model.card
    assert card["export"]["parity"]["images"] == len(SIZES)
    (found,) = onnx.load(exported / NETWORK, load_external_data=False).metadata_props
    assert (found.key, found.value) == ("model", model_digest(model.card))


def test_any_size_and_batch_gives_what_the_inspector_says(exported: Path, model: Model):
    network, inspector = open_network(exported / NETWORK), Inspector(model, "cpu")
    rng = np.random.default_rng(3)
    modes = set()
    for size in [*SIZES, (64, 64), (1, 1), (1, 90), (200, 1)]:
        batch = [made_image(rng, size, defect=bool(i)) for i in range(int(rng.integers(1, 4)))]
        batch[0] = batch[0].convert("L").convert("RGB")
        score, heat_map, _ = run_network(network, np.stack([np.asarray(image) for image in batch]))
        for i, expected in enumerate(inspector.predict_many(batch)):
            assert score[i] == pytest.approx(expected.score, abs=5e-3)
            np.testing.assert_allclose(heat_map[i], expected.heat_map, atol=5e-3)
            modes.add(expected.mode)
    assert modes == {0, 1}


def save_formats(folder: Path) -> list[Path]:
    """Files of all kinds, some of which cannot be used."""
    for name, content in seeds.images():
        if not name.endswith(".npy"):  # the example refuses arrays
            (folder / name).write_bytes(content)
    _, image = images()[1]
    alpha = Image.fromarray(np.tile(np.linspace(0, 255, 48).astype(np.uint8), (48, 1)))
    Image.merge("RGBA", [*image.split(), alpha]).save(folder / "transparent.png")
    image.convert("P").save(folder / "palette.png", transparency=0)
    image.save(folder / "colour.png")
    image.save(folder / "odd exif.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05")
    (folder / "text.png").write_text("not an image")
    (folder / "cut.png").write_bytes((folder / "colour.png").read_bytes()[:100])
    os.mkfifo(folder / "pipe.png")
    return sorted(folder.iterdir())


def decide_with(inspector: Inspector, file: Path) -> tuple[str, float | None]:
    try:
        prediction = inspector.predict(file)
    except InputError:
        return "error:", None
    return prediction.decision, pytest.approx(prediction.score, abs=5e-3)


def test_the_example_decides_as_the_inspector_does_or_refuses_alike(exported: Path, model: Model, tmp_path: Path):
    (tmp_path / "formats").mkdir()
    files = save_formats(tmp_path / "formats")
    for name, image in images():
        files.append(tmp_path / f"{name}.png")
        image.save(files[-1])
    run = [sys.executable, str(EXAMPLE), str(exported), *map(str, files)]
    lines = subprocess.run(run, capture_output=True, text=True, check=True, timeout=100).stdout.splitlines()
    words = [line.split() for line in lines]
    found = [(decision, None if decision == "error:" else float(score)) for decision, score, *_ in words]
    inspector = Inspector(model, "cpu")
    assert dict(zip(files, found, strict=True)) == {file: decide_with(inspector, file) for file in files}
    refused = [file.name for file, (decision, _) in zip(files, found, strict=True) if decision == "error:"]
    assert refused == ["cut.png", "deep.png", "deep.tiff", "float.tiff", "pipe.png", "text.png"]
    assert len({decision for decision, _ in found}) > 2


def test_a_flipped_decision_is_refused_and_what_was_there_stays(
    exported: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A network whose score has the wrong sign takes the place of the right one."""
    wrong = onnx.load(exported / NETWORK)
    score = wrong.graph.output[0].name
    (last,) = [node for node in wrong.graph.node if score in node.output]
    last.output[list(last.output).index(score)] = "reversed"
    wrong.graph.node.append(onnx.helper.make_node("Neg", ["reversed"], [score]))
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / NETWORK).write_text("earlier")
    monkeypatch.setattr(export, "write_network", lambda network, file, digest: onnx.save(wrong, file))
    with pytest.raises(InputError, match=r"refused.*decisions differ \(\d"):
        export_model(model, images(), folder)
    assert [file.name for file in tmp_path.iterdir()] == ["export"]
    assert [file.read_text() for file in folder.iterdir()] == ["earlier"]


def test_parity_sees_a_threshold_between_the_two_scores(exported: Path, model: Model):
    inspector, network = Inspector(model, "cpu"), open_network(exported / NETWORK)
    scores = [
        (float(run_network(network, np.asarray(one)[None])[0][0]), inspector.predict(one).score, one)
        for _, one in images()[:3]
    ]
    score, expected, image = next(row for row in scores if row[0] != row[1])
    inspector.threshold = replace(inspector.threshold, defective=(score + expected) / 2)
    found = measure_parity(inspector, network, [("near", image), ("far", images()[3][1])])
    assert found.flips == ("near",) and found.margin == pytest.approx(abs(score - expected) / 2)


def test_a_missing_package_is_named_with_what_installs_it(model: Model, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(export, "NEEDED", ("onnx", "no_such_package"))
    with pytest.raises(InputError, match=r"packages no_such_package: pip install -c constraints.txt -e '\.\[export\]'"):
        export_model(model, images(), tmp_path / "export")
    assert not list(tmp_path.iterdir())


def test_a_model_that_keeps_proportions_is_refused(model: Model, tmp_path: Path):
    kept = replace(model, card=model.card | {"keep_proportions": True})
    with pytest.raises(InputError, match="keep_proportions = true"):
        export_model(kept, images(), tmp_path / "export")
    assert not (tmp_path / "export").exists()
