import pytest

from mpfm_kedro.parameters import PrototypeParameters, RepairParameters
from small_mpfm import GROUPS, groups, specify

TRAINED = ({"epochs": 7}, {"hidden": 7}, {"head_members": 7}, {"mim_weight": 0.7}, {"head_top_shares": [0.7]})
FORMS = [name for name in RepairParameters.model_fields if name not in ("fusion", "transport_start")]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        *(({name: 7}, {"prototypes"}) for name in PrototypeParameters.model_fields),
        ({"top_share": 0.7}, {"prototypes"}),
        *((changes, {"training"}) for changes in TRAINED),
        *(({name: "printed"}, {"training"}) for name in FORMS),
        ({"transport_start": "printed", "coupling": "printed"}, {"prototypes", "training"}),
        *((changes, {"calibration"}) for changes in ({"fusion": "printed"}, {"scores": ["g"]})),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),  # a set prints in any order
)
def test_each_parameter_belongs_to_the_pieces_that_it_decides(changes, expected):
    pairs = zip(specify().pieces, specify(**changes).pieces, strict=True)
    assert {one.name for one, changed in pairs if one.parameters != changed.parameters} == expected


def test_no_parameter_is_forgotten_and_rows_share_what_they_have_in_common():
    given = set().union(*(piece.parameters for piece in specify().pieces))
    assert all(set(group.model_fields) <= given for group in GROUPS.values())
    configured, at_step_0, untrained = specify().pieces, specify(step_0=True).pieces, specify(trained=False).pieces
    assert configured[:2] == at_step_0[:2] and configured[2] != at_step_0[2] and configured[0] == untrained[0]


def test_pieces_that_learn_from_anomalies_say_so():
    assert [piece.supervised for piece in specify().pieces] == [False, True, True]
    assert not any(piece.supervised for piece in specify(trained=False).pieces)
    assert specify().budget == "8 steps of 18" and specify(trained=False).budget == "closed form"


def test_a_transport_without_a_start_cannot_be_coupled():
    with pytest.raises(ValueError, match="coupling"):
        groups(transport_start="printed")
