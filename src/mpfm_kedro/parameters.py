"""Typed parameters: every name a user may set, its type and its range.

``conf/base/parameters*.yml`` holds the values; this file holds the contract. It is checked as a whole
before anything runs, so that a typing error costs seconds and not hours.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mpfm_kedro.errors import InputError

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Repair = Literal["repaired", "printed"]
View = Literal["hflip", "vflip", "rot90", "rot180", "rot270", "transpose", "transverse"]
Statistic = Literal["mean", "max", "std"]
Score = Literal["g", "a", "r", "n"]
Setting = Literal["general", "hard"]


def _in_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _auto_or_pixels(value: int | str) -> int | str:
    if value != "auto" and not (isinstance(value, int) and 32 <= value <= 4096):
        raise ValueError("should be auto or a whole number from 32 to 4096")
    return value


def _auto_or_range(value: str) -> str:
    if value != "auto":
        number = r"-?\d+(?:\.\d+)?"
        found = re.fullmatch(rf"({number})\.\.({number})", value)
        if not found or float(found[1]) >= float(found[2]):
            raise ValueError("should be auto or the values of black and white, such as 0..4095")
    return value


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", value):
        raise ValueError("should be auto or a name of letters, digits, dots, - and _")
    return value


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("should name each backbone once")
    return names


Numbers = Annotated[list[Count], Field(min_length=1), BeforeValidator(_in_list)]
Methods = Annotated[list[str], Field(min_length=1), BeforeValidator(_in_list)]


class Group(BaseModel):
    """A group of parameters: unknown names and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class IngestionParameters(Group):
    """How strictly the raw images are checked, and what is done about repeated ones."""

    allow_partial: bool
    max_unreadable_share: Share
    max_megapixels: Positive
    pixel_range: Annotated[str, AfterValidator(_auto_or_range)] = "auto"
    group_split: bool = False
    drop_duplicates: bool = False


class FeatureParameters(Group):
    """What the frozen backbone computes of each image."""

    weights_file: str | None
    layers: Annotated[list[str], Field(min_length=1)]
    map_layers: Annotated[list[str], Field(min_length=1)]
    statistics: Annotated[list[Statistic], Field(min_length=1)]
    cutmix_views: Annotated[int, Field(ge=0)]
    anomaly_views: list[View]
    batch_size: Count
    workers: Annotated[int, Field(ge=0)]
    precision: Literal["fp32", "bf16"]
    compile: bool


class PrototypeParameters(Group):
    """The mixture of the normals and the prototypes of their patches."""

    n_prototypes: Count
    n_patch_prototypes: Count
    max_modes: Count
    min_mode_size: Count
    folds: Annotated[int, Field(ge=2)]


class RepairParameters(Group):
    """The named repairs of the printed method; see docs/method.md."""

    mutual_information: Repair
    normality_target: Repair
    velocity_target: Repair
    push: Repair
    likelihood: Repair
    coupling: Repair
    transport_start: Repair
    residual: Repair
    fusion: Repair

    @model_validator(mode="after")
    def _coupling_needs_a_start(self) -> Self:
        if self.transport_start == "printed" and self.coupling == "repaired":
            raise ValueError("transport_start: printed has no groups to couple within; set coupling: printed, too")
        return self

    @property
    def is_as_printed(self) -> bool:
        """Whether every form is the printed one."""
        return set(self.model_dump().values()) == {"printed"}


class TrainingParameters(Group):
    """The objective and its optimisation."""

    epochs: Count
    iterations_per_epoch: Count
    normals_per_batch: Count
    anomalies_per_batch: Count
    learning_rate: Positive
    head_epochs: Count
    head_learning_rate: Positive
    head_decays: Annotated[int, Field(ge=0)]
    normality_learning_rate: Positive
    weight_decay: Annotated[float, Field(ge=0)]
    clip_norm: Positive
    mim_weight: Annotated[float, Field(ge=0)]
    mim_sharpness: Positive
    push_margin: Annotated[float, Field(ge=0)]
    head_members: Count
    head_top_shares: Annotated[list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)]
    transport_steps: Count
    hidden: Count
    top_share: Annotated[float, Field(gt=0, le=1)]
    scores: Annotated[list[Score], Field(min_length=1)]


class SettingParameters(Group):
    """What one setting of the comparison covers, where it is not what the whole comparison does."""

    n_anomalies: Numbers | None = None
    n_seeds: Count | None = None
    methods: Methods | None = None


class ComparisonParameters(Group):
    """What the comparison covers."""

    n_anomalies: Numbers
    steps: Annotated[int, Field(ge=0)]
    methods: Methods
    settings: Annotated[list[Setting], Field(min_length=1), BeforeValidator(_in_list)] = ["general", "hard"]
    general: SettingParameters = SettingParameters()
    hard: SettingParameters = SettingParameters()

    def of(self, setting: str, n_seeds: int) -> SettingParameters:
        """What a setting covers; ``n_seeds`` where it has no number of its own."""
        own: SettingParameters = getattr(self, setting)
        return SettingParameters(
            n_anomalies=own.n_anomalies or self.n_anomalies,
            n_seeds=own.n_seeds or n_seeds,
            methods=own.methods or self.methods,
        )


class AblationParameters(Group):
    """What ablation and sensitivity cover."""

    settings: Annotated[list[Setting], Field(min_length=1), BeforeValidator(_in_list)]
    parts: Annotated[list[Literal["figure_2", "table_3", "repairs"]], Field(min_length=1), BeforeValidator(_in_list)]


class SensitivityParameters(Group):
    """The values that the sensitivity study tries."""

    n_prototypes: Numbers
    mim_weight: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1), BeforeValidator(_in_list)]


class InspectionParameters(Group):
    """How a production model is fitted and used."""

    false_alarm_rate: Annotated[float, Field(gt=0, lt=1)]
    confidence: Annotated[float, Field(ge=0.5, lt=1)]
    overlays: Literal["flagged", "all", "none"]
    workers: Annotated[int, Field(ge=0)]


class ComputeParameters(Group):
    """Where tasks run: in processes of this machine, or on a Dask cluster."""

    processes: Annotated[int, Field(ge=0)]
    threads: Annotated[int, Field(ge=0)] = 0
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    dask_scheduler: str | None
    dask_resources: dict[str, Positive] = Field(default_factory=dict)


class Parameters(Group):
    """All parameters of the project."""

    dataset: str
    name: Annotated[str, AfterValidator(_folder_name)] = "auto"
    category: str
    data_root: str
    output_root: str
    known_class: str
    n_anomalies: Numbers
    n_seeds: Count
    first_seed: Annotated[int, Field(ge=0)]
    image_size: Annotated[int | str, AfterValidator(_auto_or_pixels)]
    backbone: Annotated[list[str], Field(min_length=1), BeforeValidator(_in_list), AfterValidator(_distinct)]
    device: Literal["auto", "cpu", "cuda"]
    ingestion: IngestionParameters
    features: FeatureParameters
    prototypes: PrototypeParameters
    repairs: RepairParameters
    training: TrainingParameters
    comparison: ComparisonParameters
    ablation: AblationParameters
    sensitivity: SensitivityParameters
    inspection: InspectionParameters
    images: str | None
    label: Literal["anomaly", "normal"] | None
    study: str | None = None
    compute: ComputeParameters


def text_parameters() -> set[str]:
    """The names of parameters outside of groups that are texts: what is typed for them is no number."""
    texts = (str, str | None)
    return {name for name, field in Parameters.model_fields.items() if field.annotation in texts}


def check_parameters(values: Mapping[str, Any]) -> Parameters:
    """Validate all parameters at once; an error names each wrong one and the nearest valid name."""
    try:
        return Parameters.model_validate(dict(values))
    except ValidationError as error:
        raise InputError("\n".join(_explain(problem) for problem in error.errors())) from None


def _explain(problem: Any) -> str:
    location = [part for part in problem["loc"] if isinstance(part, str)]  # without the place in a list
    name = ".".join(location)
    if problem["type"] == "extra_forbidden":
        *groups, last = location
        beside = {".".join([*groups, field]): field for field in _group_at(groups).model_fields}
        anywhere = {dotted: dotted.rpartition(".")[2] for dotted in _dotted_names()}
        same = next((dotted for dotted, own in anywhere.items() if own == last), None)
        near = same or _nearest(last, beside) or _nearest(last, anywhere)
        hint = f"did you mean '{near}'?" if near else f"known names: {', '.join(sorted(beside.values()))}"
        return f"Unknown parameter '{name}': {hint}"
    if problem["type"] == "missing":
        return f"Parameter '{name}' is missing from the configuration"
    if problem["type"] == "model_type":
        first = next(_dotted_names(_group_at(location), f"{name}."))
        return f"Parameter '{name}' = {problem['input']!r}: this is a group, set what is in it, for example {first}"
    return f"Parameter '{name}' = {problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}"


def _dotted_names(group: type[Group] | None = None, prefix: str = "") -> Iterator[str]:
    """The names of all parameters, those of groups with a dot."""
    for name, field in (group or Parameters).model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Group):
            yield from _dotted_names(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _nearest(name: str, known: Mapping[str, str]) -> str | None:
    """The dotted name whose last part is most like ``name``, if any is."""
    near = difflib.get_close_matches(name, known.values(), n=1)
    return next((dotted for dotted, last in known.items() if near and last == near[0]), None)


def _group_at(location: list[str]) -> type[Group]:
    group: type[Group] = Parameters
    for part in location:
        annotation = group.model_fields[part].annotation
        assert isinstance(annotation, type)
        group = annotation
    return group
