"""The benchmarks of others: their official harnesses, each in an environment of its own, against an endpoint.

benchmark             the protocol of a benchmark, and the one function that runs all of them
bfcl, tau2, acebench  how the official harness of each is run, and how its files are read
aime                  problems that the user brings, sampled and scored here
endpoint              the model whose answers are measured, and the model that plays the user
relay                 between harness and endpoint: names, keys, settings, and a line for every request
harness_process       a program of a harness, confined
managed_environment   the environment of a harness: made once, whole or not at all, and its programs
harnesses, locks      package and version of each harness, and the digests of the packages that it needs
results               the files of a run: run.json, samples.jsonl, summary.json
scores                samples summed up, with intervals
"""
