"""Typed parameters: every name a user may set, its type and its range.

``conf/base/parameters*.yml`` holds the values; this file holds the contract. It is checked as a whole
before anything runs, so that a typing error costs seconds and not hours.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Repair = Literal["repaired", "printed"]
View = Literal["hflip", "vflip", "rot90", "rot180", "rot270", "transpose", "transverse"]
Statistic = Literal["mean", "max", "std"]
Score = Literal["g", "a", "r", "n"]
Setting = Literal["general", "hard"]
Device = Literal["auto", "cpu", "cuda"]
AUTO: Literal["auto"] = "auto"
ByItem = bool | Literal["auto"]
# where nodes find the parameters that users type without a group: the group, and its source
COPIES = {
    "protocol.known_class": "known_class",
    "protocol.n_anomalies": "n_anomalies",
    "protocol.n_seeds": "n_seeds",
    "protocol.first_seed": "first_seed",
    "protocol.split_by_item": "ingestion.split_by_item",
    "features.image_size": "image_size",
    "compute.device": "device",
    "inspection.device": "device",
}


def _in_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _auto_or_pixels(value: int | str) -> int | str:
    if value != "auto" and not (isinstance(value, int) and 32 <= value <= 4096):
        raise ValueError("should be auto or a whole number from 32 to 4096")
    return value


def _auto_or_range(value: str) -> str:
    if value != "auto":
        number = r"-?\d+(?:\.\d+)?"
        match = re.fullmatch(rf"({number})\.\.({number})", value)
        if not match or float(match[1]) >= float(match[2]):
            raise ValueError("should be auto or the values of black and white, such as 0..4095")
    return value


def _auto_or_pattern(value: str) -> str:
    try:
        groups = 1 if value == "auto" else re.compile(value).groups
    except re.error as error:
        raise ValueError(f"should be auto or a regular expression ({error})") from error
    if not groups:
        raise ValueError("should be auto or have a group that matches the item, such as (part\\d+)_")
    return value


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"\w[\w.-]{0,99}", value):
        raise ValueError("should be auto or a name of at most 100 letters, digits, dots, - and _")
    return value


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("should name each backbone once")
    return names


Numbers = Annotated[list[Count], Field(min_length=1), BeforeValidator(_in_list)]
KnownNumbers = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), BeforeValidator(_in_list)]
Methods = Annotated[list[str], Field(min_length=1), BeforeValidator(_in_list)]


class Group(BaseModel):
    """A group of parameters: unknown names and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ProtocolParameters(Group):
    """Which runs there are; ``complete`` makes this group of the parameters that users set most."""

    known_class: str
    n_anomalies: KnownNumbers
    n_seeds: Count
    first_seed: Annotated[int, Field(ge=0)]
    split_by_item: ByItem


class IngestionParameters(Group):
    """How strictly the raw images are checked, and what is done about repeated ones."""

    allow_partial: bool
    max_unreadable_share: Share
    max_megapixels: Positive
    pixel_range: Annotated[str, AfterValidator(_auto_or_range)] = "auto"
    item_pattern: Annotated[str, AfterValidator(_auto_or_pattern)] = "auto"
    split_by_item: ByItem = AUTO
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
    keep_proportions: bool = False
    image_size: Annotated[int | str, AfterValidator(_auto_or_pixels)] = AUTO


class PrototypeParameters(Group):
    """The mixture of the normals and the prototypes of their patches."""

    n_prototypes: Count
    n_patch_prototypes: Count
    max_modes: Count
    min_mode_size: Count
    folds: Annotated[int, Field(ge=2)]
    top_share: Annotated[float, Field(gt=0, le=1)]


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
    scores: Annotated[list[Score], Field(min_length=1)]


class SettingParameters(Group):
    """What one setting of the comparison covers, where it is not what the whole comparison does."""

    n_anomalies: KnownNumbers | None = None
    n_seeds: Count | None = None
    methods: Methods | None = None


class ComparisonParameters(Group):
    """What the comparison covers."""

    n_anomalies: KnownNumbers
    steps: Annotated[int, Field(ge=0)]
    methods: Methods
    settings: Annotated[list[Setting], Field(min_length=1), BeforeValidator(_in_list)] = ["general", "hard"]
    general: SettingParameters = SettingParameters()
    hard: SettingParameters = SettingParameters()

    def of(self, setting: str, n_seeds: int) -> SettingParameters:
        """What a setting covers; ``n_seeds`` where it has no number of its own."""
        chosen = getattr(self, setting).model_dump(exclude_none=True)
        return SettingParameters(
            **{"n_anomalies": self.n_anomalies, "n_seeds": n_seeds, "methods": self.methods} | chosen
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
    device: Device = AUTO


class ComputeParameters(Group):
    """Where tasks run: in processes of this machine, or on a Dask cluster."""

    processes: Annotated[int, Field(ge=0)]
    threads: Annotated[int, Field(ge=0)] = 0
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    dask_scheduler: str | None
    dask_resources: dict[str, Positive] = Field(default_factory=dict)
    device: Device = AUTO


class Parameters(Group):
    """All parameters of the project."""

    dataset: str
    name: Annotated[str, AfterValidator(_folder_name)] = "auto"
    category: str
    data_root: str
    output_root: str
    known_class: str
    n_anomalies: KnownNumbers
    n_seeds: Count
    first_seed: Annotated[int, Field(ge=0)]
    image_size: Annotated[int | str, AfterValidator(_auto_or_pixels)]
    backbone: Annotated[list[str], Field(min_length=1), BeforeValidator(_in_list), AfterValidator(_distinct)]
    device: Device
    protocol: ProtocolParameters
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
    batch: Annotated[str, AfterValidator(_folder_name)] = AUTO
    label: Literal["anomaly", "normal"] | None
    study: str | None = None
    compute: ComputeParameters
