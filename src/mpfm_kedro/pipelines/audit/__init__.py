"""The stage audit."""

from mpfm_kedro.pipelines.audit.pipeline import create_pipeline as create_pipeline
