"""Study: one report of several comparisons."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.experiments.ranks import rank_methods
from mpfm_kedro.pipelines.reporting.pipeline import keep
from mpfm_kedro.reports.rank_figure import draw_ranks
from mpfm_kedro.reports.study import describe_study, gather_cells, printed_cells, write_study, write_study_page


def create_pipeline(**_: object) -> Pipeline:
    """Tables, ranks and a page; ``kedro run`` makes the comparisons first."""
    written = ["printed", "ranked", "study_plan", "origin"]
    return Pipeline(
        [
            node(gather_cells, ["study_plan", "compared"], "cells", name="gather_cells"),
            node(printed_cells, "cells", "printed", name="printed_cells"),
            node(rank_methods, "printed", "ranked", name="rank_methods"),
            node(describe_study, ["study_plan", "params:study"], "origin", name="describe_study"),
            node(write_study, written, "summary_text", name="write_study"),
            node(write_study_page, written, "report", name="write_study_page"),
            node(draw_ranks, "ranked", "plot", name="draw_ranks"),
            node(keep, "cells", "summary", name="write_summary"),
            node(keep, "printed", "table", name="write_table"),
            node(keep, "ranked", "ranks", name="write_ranks"),
        ],
        namespace="study",
        inputs={"study_plan", "compared"},
        parameters={"params:study"},
    )
