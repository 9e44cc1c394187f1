"""Public benchmarks: their official harnesses, each in an environment of its own.

benchmark             The protocol of a benchmark, and `evaluate_benchmark`, which runs all of them.
bfcl                  BFCL by the official package: its multi-turn categories, whose cases are asked turn by turn, and
                      single-turn ones.
tau2                  τ²-bench's retail and telecom, by the official code, v0.2.0: a model plays the user.
acebench              ACEBench's agent split, by the official code: an agent that writes its calls as text.
aime                  AIME: problems that the user brings, sampled many times over and scored by the last `\\boxed{}`.
endpoint              The model that a benchmark measures, at a running or a started server, and the simulated user.
relay                 The server between a harness and an endpoint: it passes chats on, and writes a line for each.
harness_process       A program of a harness, run to its end: confined, in a folder and with variables of its own.
managed_environment   The environment of a harness: a venv in the user's cache that is made once, whole or not at all.
harnesses             The official harnesses: the package, version and modules of each.
results               The files in the folder of a run, the same for every benchmark.
scores                Samples summed up: figures by category and their mean, with intervals, and failures by cause.
foreign_environments  Attacks in an environment of another library, which runs confined in the Python that it is
                      installed in.
foreign_tasks         Runs in the Python of a foreign environment, confined: says fixed texts in its tasks and writes
                      their rewards.
"""
