"""The benchmarks of others: their official harnesses, each in an environment of its own, against an endpoint.

results               what a run leaves: run.json, samples.jsonl, summary.json
scores                samples summed up, with intervals
harnesses, locks      which package of which version, and the digests of all that it needs
managed_environment   the environment of a harness: made once, whole or not at all, and its programs
endpoint              whose answers are measured: a server that is up, or one that is started for a checkpoint
harness_process       a program of a harness, confined
relay                 between harness and endpoint: names, keys, settings, and a line for every request
bfcl, bfcl_files      BFCL's multi-turn categories: what is run, and what it leaves
tau2, tau2_files      τ²-bench: the same
acebench, acebench_files   ACEBench's agent split: the same
simulated_user        who plays the user of these two
aime, aime_answer     AIME: problems that the user brings, sampled and scored here
paper                 the paper's figures, by the table that they stand in
"""
