"""The report: one self-contained HTML page of a run, made only from the files of its folder.

    page                reads the folder, lays the page out          page.html.jinja, style.css.jinja
    before_and_after    the held-out figures of every policy
    charts              curves over steps: scales, ticks, smoothing  charts.html.jinja
    data_sets           what is in the record directories
    episodes            which episodes are shown, token by token     episodes.html.jinja

The page runs no script and loads nothing.
"""

from astra_jax.report.page import RunFolderError, write_report

__all__ = ["RunFolderError", "write_report"]
