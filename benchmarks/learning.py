"""What does a missed defect teach? AUC and recall on one class of defects before and after some of it were learned.

    python benchmarks/learning.py elpv        # after kedro run --pipelines=features --params=dataset=elpv

Ten known anomalies of one class (the hard setting), then one and three images of another class are learned, as
`kedro run --pipelines=learn` does. Tested are the images of that other class that were never learned.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from mpfm_kedro.evaluation.measures import measures
from mpfm_kedro.parameters import ProtocolParameters
from mpfm_kedro.protocol.runs import make_hard_runs, records
from opened_project import open_project, parser, score_mpfm

LEARNED = (0, 1, 3)


def main() -> None:
    """Fit, score, print a table in Markdown."""
    given = parser(str(__doc__).splitlines()[0]).parse_args()
    parameters, compute, (samples, features, images) = open_project(given, "samples", "features", "images")
    protocol = parameters.protocol.model_copy(
        update={"known_class": "all", "n_anomalies": [10], "n_seeds": given.seeds}
    )
    print(as_markdown(score_mpfm(plan_runs(samples, protocol), samples, features, images, parameters, compute)))


def plan_runs(samples: pd.DataFrame, protocol: ProtocolParameters) -> pd.DataFrame:
    """Runs of the hard setting that learn more and more of one other class, all tested on the rest of that class."""
    classes = samples.set_index("sample_id")["defect_class"]
    planned = []
    for run in records(make_hard_runs(samples, protocol)):
        tested = np.array(run["test_anomalies"])
        for missed in sorted(set(classes[tested])):
            own = np.random.default_rng(run["seed"]).permutation(tested[classes[tested] == missed])
            for number in LEARNED:
                name = f"{run['known_class']}, then {missed}"
                learned = [*run["known_anomalies"], *own[:number]]
                changes = {"run": f"{run['run']}-{missed}-{number}", "known_class": name, "n_anomalies": number}
                planned.append(
                    run | changes | {"known_anomalies": learned, "test_anomalies": sorted(own[max(LEARNED) :])}
                )
    return pd.DataFrame(planned)


def as_markdown(scores: pd.DataFrame) -> str:
    """AUC and recall at 1 % false alarms by class and number of learned images, mean over seeds."""
    rows = [
        {"known": known, "number": number, **measures(part)}
        for (known, _, number), part in scores.groupby(["known_class", "seed", "n_anomalies"])
    ]
    table = pd.DataFrame(rows).pivot_table(["auc", "recall_1"], "known", "number")
    lines = [
        "| ten known of, missed class | " + " | ".join(f"{n} learned" for n in LEARNED) + " |",
        "|---|---|---|---|",
    ]
    for known, row in table.iterrows():
        shown = (f"{row['auc', number]:.3f} · {row['recall_1', number]:.2f}" for number in LEARNED)
        lines.append(f"| {known} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
