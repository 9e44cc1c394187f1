"""The benchmarks of others: their official harnesses, each in an environment of its own, against an endpoint.

benchmark             what every benchmark has, and the one way in which all of them are run
bfcl, tau2, acebench  how the official harness of each is run, and how its files are read
aime                  problems that the user brings, sampled and scored here
endpoint              the model whose answers are measured, and the model that plays the user
relay                 between harness and endpoint: names, keys, settings, and a line for every request
harness_process       a program of a harness, confined
managed_environment   the environment of a harness: made once, whole or not at all, and its programs
harnesses, locks      which package of which version, and the digests of all that it needs
results               the files of a run: run.json, samples.jsonl, summary.json
scores                samples summed up, with intervals
"""
