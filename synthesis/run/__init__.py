"""A run on disk: where it may write, what it was made with, and one process at a time in its folder.

Nothing here knows what a run makes. Synthesis, training, evaluation, benchmarks and the quickstart share it.

json_values    JSON values in the one form that hashes are taken of
destination    the folder or file that a command may write to, made whole or not at all
fingerprint    config, inputs and code of a result as one flat table, and the refusal where two tables differ
code           the identity of code: digests of the syntax trees that a module imports
manifest       the JSON file by which a later command knows the result of an earlier one
lock           one process at a time in a folder
"""
