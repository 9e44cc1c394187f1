"""A run on disk: its destination, its fingerprint, its manifest, and one process at a time in its folder.

json_values  JSON values: their canonical form, which hashes are taken of, and the texts inside them.
destination  The destination of a command: the one rule that protects the user's files, and the one rename into place.
fingerprint  The fingerprint of a result: config, contents of its inputs, and source of the code, as one flat table.
code         The identity of code: a digest for each file that a module imports, blind to comments and docstrings.
manifest     The manifest of a run: the JSON file in its folder with its fingerprint and its closing figures.
lock         The lock of a folder, for one run at a time: a second one ends before it has touched anything.
places       Places in a bucket: a URL stands for a folder of this machine, its stage, which holds the same files.

Nothing here depends on the kind of the run. Synthesis, training, evaluation, benchmarks and the quickstart share it.
"""
