"""The parts that both tracks share: journals, seeds, fingerprint, and the records at the end.

fingerprint  The fingerprint of a track's records: config, inputs, teacher, and code with its prompts.
journal      The journal of a stage: items are worked on side by side, and each is written down when it ends.
language     The language of written texts: a question, task or description in another one is rejected.
metering     Metered work on one item: the cost of its replies is kept, and an unusable reply rejects it.
run          One run of a track: an earlier result, its journals, and the records that it writes at the end.
second_try   A reply that breaks a rule of structure is asked for once more, with the reason quoted.
seeds        Seeds of every draw, derived from the run's seed and the name of the draw.
selection    Selection from a finished run under other thresholds, without asking the teacher.
"""
