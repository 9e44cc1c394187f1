"""The parts that both tracks share: journals, seeds, fingerprint, and the records at the end.

journal    The journal of a stage: items are worked on side by side, and each is written down when it ends.
run        One run of a track: its fingerprint and journals, an earlier result, the records that it writes at the end.
seeds      Seeds of every draw, derived from the run's seed and the name of the draw.
selection  Selection from a finished run under other thresholds, without asking the teacher.
replies    Replies to the questions about one item: their cost is kept, and one that breaks a rule is asked for once
           more.
"""
