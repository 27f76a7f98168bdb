"""The model folder: what is stored comes back, and what was changed is refused."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.model import CARD, load_model, model_digest, save_model


def test_a_saved_model_is_the_same_again(model_folder, tmp_path):
    model = load_model(model_folder)
    save_model(model, tmp_path / "copy")
    again = load_model(tmp_path / "copy")
    assert again.card == model.card
    for name, piece in model.detector.items():
        assert again.detector[name].details == piece.details
        assert all(value.equal(again.detector[name].tensors[key]) for key, value in piece.tensors.items())
    pd.testing.assert_frame_equal(again.calibration.table, model.calibration.table)
    np.testing.assert_array_equal(again.gallery.z, model.gallery.z)
    assert again.gallery.table.equals(model.gallery.table)


def files_of(folder):
    return sorted(file.name for file in folder.iterdir() if file.name != CARD)


@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "other"])
def test_a_changed_file_is_refused_by_name(own_model_folder, how):
    for name in files_of(own_model_folder):
        file = own_model_folder / name
        content = file.read_bytes()
        if how == "missing":
            file.unlink()
        else:
            middle = len(content) // 2
            flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            file.write_bytes({"flipped": flipped, "cut": content[:100], "other": b""}[how])
        with pytest.raises(InputError, match=name.replace(".", r"\.")):
            load_model(own_model_folder)
        file.write_bytes(content)
    load_model(own_model_folder)


def test_a_folder_without_a_model_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(InputError, match="kedro run --pipelines=fit"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("text", "match"), [("{", "cannot be read"), ("[]", "cannot be read"), ('{"format": 99}', "99")]
)
def test_a_card_of_another_kind_is_refused(own_model_folder, text, match):
    (own_model_folder / CARD).write_text(text)
    with pytest.raises(InputError, match=match):
        load_model(own_model_folder)


def test_a_failed_save_leaves_the_old_model(own_model_folder):
    model = load_model(own_model_folder)
    broken = replace(model, card=model.card | {"data": object()})  # JSON cannot hold it
    with pytest.raises(TypeError):
        save_model(broken, own_model_folder)
    assert load_model(own_model_folder).card == model.card
    assert list(own_model_folder.parent.iterdir()) == [own_model_folder]


def test_equal_files_of_the_version_before_are_shared(model_folder, tmp_path):
    model = load_model(model_folder)
    save_model(model, tmp_path / "first")
    save_model(replace(model, card=model.card | {"seed": 7}), tmp_path / "second", like=tmp_path / "first")
    for name in files_of(tmp_path / "first"):
        assert (tmp_path / "first" / name).samefile(tmp_path / "second" / name)
    assert load_model(tmp_path / "second").card["seed"] == 7


def test_the_digest_names_the_numbers_and_not_when_they_were_made(model_folder):
    card = json.loads((model_folder / CARD).read_text())
    assert model_digest(card) == model_digest(card | {"made": "later"})
    assert model_digest(card) != model_digest(card | {"pixel_range": "0..4095"})
