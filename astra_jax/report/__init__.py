"""The report: one self-contained HTML page of a run, of runs side by side, or of a record directory.

page              The page of a run, of runs side by side, or of a record directory: it reads the folders and lays the
                  page out.
held_out          The held-out figures of every policy, and the number of environments that they were taken on.
tables            Tables of a page: rows and columns of cells, each with its interval in small letters.
charts            Curves over steps: scales, ticks and paths, in percent of the plot.
data_sets         A data set as it is shown: figures beside the paper's, and the shares of its sizes, scores and kinds.
episodes          The episodes of a page, as its viewer (`viewer.js`) reads them: one JSON object.
environments      Evaluations in environments side by side: tables of figures, differences, slices and endings.
benchmarks        The page of evaluations, of environments and of benchmarks; HTML and Markdown.
benchmark_tables  Runs of benchmarks beside the paper: tables, and the reasons why a run is not comparable.
paper             The paper's figures, by their table, and its claims over Qwen3.
certificate       The files of a certificate: `certificate.json`, and a card that shows it, `certificate.html`.

Each page and each of its parts has a template beside these files. A page loads nothing; that of a run runs one script,
`viewer.js`, which shows its episodes.
"""

from astra_jax.report.page import page_path, write_report

__all__ = ["page_path", "write_report"]
