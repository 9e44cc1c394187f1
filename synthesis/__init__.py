"""Making training data: documents and knowledge in, record directories out. Plain Python; JAX is never imported.

records, record_io, stage     what is kept, how it lies on disk, how many items are worked on
answers/                      the one rule of "solved"
track/                        journal, fingerprint, seeds: once for both tracks
questions/, teacher/, prompts/  what is asked, who answers, in which words
tools/                        tool documents and real tool servers
trajectories/, environments/  the two tracks; each is read in its `pipeline.py`
procedural/                   the embedded teacher: no network, no key
by_construction               which figures of a set only say how it was made
export/                       rows for other trainers, each folder with its schema and card
cost/                         what a track would cost, before anything is spent
"""
