"""A run on disk: its destination, its fingerprint, its manifest, and one process at a time in its folder.

Nothing here depends on the kind of the run. Synthesis, training, evaluation, benchmarks and the quickstart share it.

json_values    JSON values, the one form of them that hashes are taken of, and the texts inside them
destination    the folder or file that a command may write to, made whole or not at all
fingerprint    config, inputs and code of a result as one flat table, and the refusal where two tables differ
code           the identity of code: a digest of the syntax tree of each file that a module imports
manifest       the JSON file by which a later command knows the result of an earlier one
lock           one process at a time in a folder
row_digests    digests beside the rows of an SQLite file, by which a damaged row is noticed
"""
