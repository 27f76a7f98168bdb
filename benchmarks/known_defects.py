"""Do more known defects find more? AUC and recall at 1 % false alarms on the same test images, for several M.

    python benchmarks/known_defects.py aitex --pool 92 --numbers 5 20 92 --first-seed 100 --seeds 2

after kedro run --pipelines=features. Known defects are drawn from a pool; all outside of it are tested (general
setting).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from mpfm_kedro.evaluation.measures import measures
from mpfm_kedro.parameters import ProtocolParameters
from mpfm_kedro.protocol.runs import make_general_runs, records
from opened_project import open_project, parser, score_mpfm


def main() -> None:
    """Fit, score, print a table in Markdown."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--pool", type=int, default=100, help="known defects at most")
    arguments.add_argument("--numbers", type=int, nargs="+", default=[5, 20, 100], help="M")
    arguments.add_argument("--first-seed", type=int, default=0)
    given = arguments.parse_args()
    parameters, compute, (samples, features, images) = open_project(given, "samples", "features", "images")
    seeds = {"n_seeds": given.seeds, "first_seed": given.first_seed}
    protocol = parameters.protocol.model_copy(update={"n_anomalies": [given.pool], **seeds})
    runs = plan_runs(samples, protocol, given.numbers)
    print(as_markdown(score_mpfm(runs, samples, features, images, parameters, compute)))


def plan_runs(samples: pd.DataFrame, protocol: ProtocolParameters, numbers: list[int]) -> pd.DataFrame:
    """Runs of the general setting that know some of their pool, in an order drawn by the seed."""
    planned = []
    for run in records(make_general_runs(samples, protocol)):
        pool = np.random.default_rng(run["seed"]).permutation(run["known_anomalies"])
        for number in numbers:
            changes = {"run": f"{run['run']}-{number}", "n_anomalies": number}
            planned.append(run | changes | {"known_anomalies": sorted(pool[:number])})
    return pd.DataFrame(planned)


def as_markdown(scores: pd.DataFrame) -> str:
    """One row per M, mean and standard deviation over seeds."""
    rows = [
        {"seed": seed, "M": number, **measures(part)}
        for (seed, number), part in scores.groupby(["seed", "n_anomalies"])
    ]
    shown = pd.DataFrame(rows).groupby("M")[["auc", "recall_1"]].agg(["mean", "std"])
    lines = ["| M | AUC | recall at 1 % |", "|---|---|---|"]
    for number, row in shown.iterrows():
        cells = [f"{row[name, 'mean']:.3f} ± {row[name, 'std']:.3f}" for name in ("auc", "recall_1")]
        lines.append(f"| {number} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
