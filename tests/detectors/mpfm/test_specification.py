import pytest

from mpfm_kedro.parameters import PrototypeParameters, RepairParameters
from small_mpfm import GROUPS, groups, specify

TRAINED = ({"epochs": 7}, {"hidden": 7}, {"head_members": 7}, {"mim_weight": 0.7}, {"head_top_shares": [0.7]})
FORMS = [name for name in RepairParameters.model_fields if name not in ("fusion", "transport_start")]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        *(({name: 0.7 if name == "top_share" else 7}, {"prototypes"}) for name in PrototypeParameters.model_fields),
        *((changes, {"training"}) for changes in TRAINED),
        *(({name: "printed"}, {"training"}) for name in FORMS),
        ({"transport_start": "printed", "coupling": "printed"}, {"prototypes", "training"}),
        *((changes, {"calibration"}) for changes in ({"fusion": "printed"}, {"scores": ["g"]})),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),  # a set prints in any order
)
def test_each_parameter_belongs_to_the_stages_that_it_decides(changes, expected):
    changed = specify(**changes)
    assert {name for name, fit in specify().items() if fit != changed[name]} == expected


def test_no_parameter_is_forgotten_and_rows_share_what_they_have_in_common():
    given = set().union(*(parameters for _, parameters in specify().values()))
    assert all(set(group.model_fields) <= given for group in GROUPS.values())
    configured, at_step_0, untrained = specify(), specify(step_0=True), specify(trained=False)
    assert {name for name, fit in configured.items() if fit != at_step_0[name]} == {"calibration"}
    assert configured["prototypes"] == untrained["prototypes"] and "training" not in untrained


def test_a_transport_without_a_start_cannot_be_coupled():
    with pytest.raises(ValueError, match="coupling"):
        groups(transport_start="printed")
