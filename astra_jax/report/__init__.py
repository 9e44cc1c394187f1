"""The report: one self-contained HTML page of a run, of ablations or of a record directory, made only from its files.

    page                reads the folder, lays the page out          layout, run, data_set .html.jinja, style.css.jinja
    before_and_after    the held-out figures of every policy
    temperatures        their F1 and final answers at every temperature on every kind of unseen environment
    charts              curves over steps and histograms             charts.html.jinja
    graphs              drawings of tool graphs and dependencies     charts.html.jinja
    ablations           what parts of the recipe do              ablations.html.jinja
    data_sets           what a record directory's page shows
    episodes            which episodes are shown, token by token     episodes.html.jinja
    environments        evaluations side by side                     environments.html.jinja
    benchmarks          these, and benchmarks beside the paper's     benchmarks .html.jinja and .md.jinja
    benchmark_tables    their scores, differences and failures; what makes a run not comparable
    benchmark_charts    their bars                                   benchmark_charts.html.jinja
    paper               the paper's figures, by the table that they stand in

The page runs no script and loads nothing.
"""

from astra_jax.report.page import RunFolderError, write_report

__all__ = ["RunFolderError", "write_report"]
