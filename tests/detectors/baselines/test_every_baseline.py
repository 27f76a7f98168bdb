"""What holds for every baseline and reference: it is restored exactly, its memory is bounded, its pieces are shared."""

import json
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.baselines.ahl import AHL
from mpfm_kedro.detectors.baselines.devnet import DevNet
from mpfm_kedro.detectors.baselines.dpdl import DPDL
from mpfm_kedro.detectors.baselines.dra import DRA
from mpfm_kedro.detectors.baselines.flos import FLOS
from mpfm_kedro.detectors.baselines.gradient_training import NetworkDetector
from mpfm_kedro.detectors.baselines.patch_knn import PatchNeighbours
from mpfm_kedro.detectors.baselines.references import LogisticRegressionAndMahalanobis, Mahalanobis
from mpfm_kedro.detectors.baselines.saoe import SAOE
from mpfm_kedro.detectors.registry import baseline, baselines
from mpfm_kedro.errors import InputError

CPU = torch.device("cpu")
EVERY = pytest.mark.parametrize("cls", baselines(), ids=lambda cls: cls.name)
NETWORKS = pytest.mark.parametrize("cls", [cls for cls in baselines() if issubclass(cls, NetworkDetector)])
READS_MAPS = pytest.mark.parametrize("cls", [DevNet, FLOS, SAOE, DRA, AHL, DPDL, PatchNeighbours])


def stored(state):
    """What comes back from a file."""
    return Artefact(load(save(state.tensors)), json.loads(json.dumps(state.details)))


def fitted_pieces(cls, data, seed):
    """All pieces as a study fits them, each from the stored earlier ones."""
    artefacts = {}
    for piece in cls.pieces(40):
        fit = resolve_name(piece.fit)
        artefacts[piece.name] = stored(fit(data, dict(artefacts), piece.parameters, seed, Context()))
    return artefacts


@EVERY
def test_a_restored_detector_gives_the_same_scores(cls, make_data, make_rows):
    rows = make_rows(20, 90, 0)
    fitted = cls(steps=40).fit(make_data(), 3, Context())
    before = torch.get_rng_state()
    restored = cls.restore(stored(fitted.state()), CPU)
    assert torch.equal(torch.get_rng_state(), before)
    scores = fitted.score_samples(rows).score
    assert scores.shape == (90,) and np.ptp(scores) > 0
    np.testing.assert_array_equal(restored.score_samples(rows).score, scores)
    again = stored(restored.state()).tensors
    assert all(torch.equal(value, again[name]) for name, value in fitted.state().tensors.items())


@EVERY
def test_pieces_give_the_same_scores(cls, make_data, make_rows):
    rows, data = make_rows(20, 30, 0), make_data()
    loaded = cls.load(fitted_pieces(cls, data, 3), CPU)
    expected = cls(steps=40).fit(data, 3, Context()).score_samples(rows).score
    np.testing.assert_array_equal(loaded.score_samples(rows).score, expected)


@NETWORKS
def test_scores_do_not_depend_on_the_memory(cls, make_data, make_rows):
    rows, data = make_rows(20, 30, 0), make_data()
    plenty, none = (
        cls(steps=40).fit(data, 3, Context(memory=memory)).score_samples(rows).score for memory in (1 << 30, 0)
    )
    np.testing.assert_array_equal(none, plenty)


class CountedMaps(np.ndarray):
    """Maps that note how many rows are read at once."""

    reads: list[int]

    def __getitem__(self, index):
        if isinstance(index, np.ndarray):
            self.reads.append(len(index))
        return np.asarray(self)[index]


@READS_MAPS
def test_maps_are_read_in_bounded_batches(cls, make_data, make_rows, monkeypatch):
    """Ten maps fit in a batch; training reads 48 rows per step."""
    data = make_data()
    monkeypatch.setattr("mpfm_kedro.backbones.rows.BYTES_PER_BATCH", 10 * data.normals.bytes_per_map)
    monkeypatch.setattr("mpfm_kedro.detectors.baselines.patch_knn.CORESET", data.normals.maps.shape[1] // 2)
    reads = []

    def counted(rows):
        maps = rows.maps.view(CountedMaps)
        maps.reads = reads
        return FeatureRows(rows.pooled, maps, rows.rows, rows.source)

    data = TrainingData(*(counted(rows) for rows in (data.normals, data.pseudo, data.anomalies)))
    detector = cls(steps=5).fit(data, 3, Context(memory=0))
    assert 0 < max(reads) <= 48
    reads.clear()
    detector.score_samples(counted(make_rows(20, 30, 0)))
    assert max(reads) == 10


def test_the_gaussian_of_all_normals_is_stored_once(make_data):
    shared, own = LogisticRegressionAndMahalanobis.pieces(40)
    assert (shared,) == Mahalanobis.pieces(1000)
    assert not shared.supervised and own.supervised
    pieces = fitted_pieces(LogisticRegressionAndMahalanobis, make_data(), 3)
    columns = make_data().normals.pooled.shape[1]
    assert max(value.numel() for value in pieces[shared.name].tensors.values()) == columns**2
    assert sum(value.numel() for value in pieces[own.name].tensors.values()) == columns + 1 + 2 + 2


@EVERY
def test_steps_are_a_parameter_of_what_is_trained_only(cls):
    assert all(piece.parameters == ({"steps": 7} if cls.kind == "baseline" else {}) for piece in cls.pieces(7))


def test_baselines_come_before_references():
    kinds = [cls.kind for cls in baselines()]
    assert kinds == sorted(kinds) and set(kinds) == {"baseline", "reference"}
    assert [baseline(cls.name) for cls in baselines()] == baselines()


def test_an_unknown_baseline_is_an_error_that_names_all():
    with pytest.raises(InputError, match=r"'DevNett'.*DevNet, FLOS.*kNN-5"):
        baseline("DevNett")
