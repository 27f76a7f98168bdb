"""What would choosing the best epoch on the test images add? The last epoch against the best of ten.

    python benchmarks/best_epoch.py brainmri        # after kedro run --pipelines=features

Published code of this field often reports the best test epoch. This project never does; here it is only measured.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mpfm_kedro.evaluation.measures import measures
from mpfm_kedro.protocol.memory import Memory
from mpfm_kedro.protocol.methods import Method, to_json
from mpfm_kedro.protocol.runs import make_general_runs
from mpfm_kedro.protocol.scores import plan_scores
from mpfm_kedro.protocol.trials import list_trials
from opened_project import open_project, parser, score_mpfm

BASELINES = ["DevNet", "FLOS"]
TENTHS = range(1, 11)


def main() -> None:
    """Fit, score, print a table in Markdown."""
    given = parser(str(__doc__).splitlines()[0]).parse_args()
    parameters, compute, (samples, features, images) = open_project(given, "samples", "features", "images")
    protocol = parameters.protocol.model_copy(update={"n_seeds": given.seeds, "n_anomalies": [10, 1], "first_seed": 0})
    runs = make_general_runs(samples, protocol)
    epochs = [parameters.training.epochs * tenth // 10 for tenth in TENTHS]
    variants = [Method(name=str(number), training={"epochs": number}) for number in epochs]
    own = score_mpfm(runs, samples, features, images, parameters, compute, variants)
    tables = [own.assign(length=own["method"].astype(int), method="MPFM")]
    memory = Memory(Path(parameters.output_root) / "06_models" / parameters.name)
    trials = list_trials(runs.assign(methods=to_json([Method(name=name, mpfm=False) for name in BASELINES])))
    for steps in (parameters.comparison.steps * tenth // 10 for tenth in TENTHS):
        scores, _, _ = plan_scores(trials, features, samples, images, compute, steps)
        tables.append(scores.run(memory).assign(length=steps))
    print(as_markdown(pd.concat(tables)))


def as_markdown(scores: pd.DataFrame) -> str:
    """AUC of the last and of the best length of training, mean over seeds."""
    by_length = [
        {"method": method, "M": m, "seed": seed, "length": length, "auc": measures(part)["auc"]}
        for (method, m, seed, length), part in scores.groupby(["method", "n_anomalies", "seed", "length"])
    ]
    aucs = pd.DataFrame(by_length).pivot_table("auc", ["method", "M", "seed"], "length")
    last = aucs.apply(lambda row: row.dropna().iloc[-1], axis=1)
    shown = pd.DataFrame({"last": last, "best": aucs.max(axis=1)}).groupby(["method", "M"]).mean()
    lines = ["| method | M | last | best on the test images | gain |", "|---|---|---|---|---|"]
    for (method, m), row in shown.iterrows():
        lines.append(f"| {method} | {m} | {row['last']:.3f} | {row['best']:.3f} | {row['best'] - row['last']:+.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
