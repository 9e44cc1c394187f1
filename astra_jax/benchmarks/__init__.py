"""The benchmarks of others: their official harnesses, each in an environment of its own, against an endpoint.

benchmark             The protocol of a benchmark, and `evaluate_benchmark`, which runs all of them.
bfcl, tau2, acebench  The run of each official harness, and the reader of its files.
aime                  AIME: problems that the user brings, sampled many times over and scored here.
endpoint              The model that a benchmark measures, and the simulated user.
relay                 The server between a harness and an endpoint: it passes chats on, and writes a line for each.
harness_process       A program of a harness, run to its end: confined, in a folder of its own.
managed_environment   The environment of a harness: a venv in the user's cache that is made once, whole or not at all.
harnesses, locks      The package and version of each harness, and the digests of the packages that it needs.
results               The files in the folder of a run: run.json, samples.jsonl, summary.json.
scores                Samples summed up, with intervals.
"""
