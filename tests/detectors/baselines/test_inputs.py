import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.inputs import StandardisedInput, training_inputs

KINDS = pytest.mark.parametrize("kind", ["pooled", "maps"])
ALL, NOTHING = Context(), Context(memory=0)


@KINDS
def test_normals_are_standardised_by_channel(kind, make_rows):
    """Over more rows than are read at once."""
    normals = make_rows(0, 150)
    scaled = StandardisedInput.fit(kind, normals).read(normals, slice(None)).flatten(0, -2)
    assert scaled.shape[1] == {"pooled": 24, "maps": 16}[kind]
    torch.testing.assert_close(scaled.mean(0), torch.zeros(scaled.shape[1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(scaled.shape[1]), atol=1e-4, rtol=0)


def test_a_column_that_is_constant_among_normals_is_not_inflated(make_rows):
    normals, others = make_rows(0, 10), make_rows(1, 10)
    normals.pooled[:, 0] = 0
    scaled = StandardisedInput.fit("pooled", normals).read(others, slice(None))
    assert scaled[:, 0].abs().max() < 100


@pytest.mark.parametrize("context", [ALL, NOTHING], ids=["cached", "read"])
def test_maps_keep_their_channels_and_rows(make_rows, context):
    rows = make_rows(0, 70).take(np.arange(69, -1, -1))
    source = StandardisedInput.fit("maps", rows)
    (inputs,) = training_inputs([source], [rows, rows.take(np.arange(2))], 48, context)
    stored = inputs.batch(torch.tensor([68, 71] * 24)) * source.spread + source.center
    expected = torch.from_numpy(rows.maps[[1, 68] * 24]).float().permute(0, 2, 3, 1)
    torch.testing.assert_close(stored, expected, atol=0.01, rtol=0)
    assert inputs.shape == (72, 6, 6, 16)


@given(index=st.lists(st.integers(0, 99), min_size=1, max_size=60))
def test_rows_have_the_same_bits_whether_cached_or_read(make_rows, index):
    """Of three groups, the second of them empty; one value is too large for half precision until it is clamped."""
    normals, pseudo = make_rows(0, 70), make_rows(1, 30, 2)
    normals.maps[3, 0] = 60000
    normals.pooled[4, 1] = 1e9
    groups = [normals, normals.take(np.arange(0)), pseudo]
    sources = [StandardisedInput.fit(kind, pseudo) for kind in ("pooled", "maps")]
    rows = torch.tensor(index)
    both = (training_inputs(sources, groups, len(index), context) for context in (ALL, NOTHING))
    for cached, read in zip(*both, strict=True):
        assert torch.equal(cached[rows], read[rows])
        assert torch.equal(cached.batch(rows), read.batch(rows))
        assert torch.equal(cached.batch(rows), cached[rows].float())


def test_rows_are_cached_only_where_they_fit_in_half_of_the_memory(make_rows):
    """Maps that change on disk show whether a batch is read again: (3 · 6 · 6 · 16 maps + 3 · 24 columns) · 2 bytes."""
    needed = 3 * (6 * 6 * 16 + 24) * 2
    for memory, cached in ((2 * needed, True), (2 * needed - 1, False)):
        rows = make_rows(0, 3)
        sources = [StandardisedInput.fit(kind, rows) for kind in ("pooled", "maps")]
        _, maps = training_inputs(sources, [rows], 3, Context(memory=memory))
        before = maps.batch(torch.arange(3)).clone()
        rows.maps[:] = 0
        assert torch.equal(maps.batch(torch.arange(3)), before) == cached
