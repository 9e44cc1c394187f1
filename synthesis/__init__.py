"""Synthesis: from tool documents and knowledge to record directories, in plain Python without JAX.

answers/          The rules of "right", each once, shared by synthesis, `astra records verify`, reward and evaluation.
audit/            The audit of a judge: faults planted into trajectories, and the share of them that passes.
by_construction   Figures of a record set that follow from how it was made, and do not measure its quality.
cost              An estimate of a run's calls, tokens and cost with a language model, before anything is spent.
diversity         Diversity of a record set: distinct texts after names and numbers are masked.
embeddings        Embeddings of tool documents, which give the similarity of tools.
environments/     The environments track: from knowledge to verified environments with executable tools.
errors            The errors of synthesis.
export/           Exports: records as rows for other trainers, in a folder with their schema and a data card.
foreign_messages  Messages of others in OpenAI's form, read strictly: the gate for SFT, `astra serve` and the teacher.
nfkc              Unicode's compatibility form of foreign text, in time linear in the text.
procedural/       The embedded teacher: seeded and offline, it answers by grammar and computation.
prompts/          The questions to the teacher, one file for each subject.
python_source     Python source as a syntax tree, without running it: foreign source may be anything.
questions/        The knowledge that questions are about, and a main question decomposed into sub-questions.
record_io         Record directories: ArrayRecord shards of JSON texts beside a `dataset.json` that describes them.
records/          Records: the data that the packages hand to one another, defined once.
run/              A run on disk: its destination, its fingerprint, its manifest, and one process at a time in its
                  folder.
stage             The report of a stage: items that were kept, and rejections by reason.
teacher/          The teacher answers the questions of synthesis.
tools/            Tool documents from anywhere, normalised, and the tools behind them.
track/            The parts that both tracks share: journals, seeds, fingerprint, and the records at the end.
trajectories/     The trajectories track: from tool documents to judged conversations.
verification      Verification of a record directory: the number of sound records, and the failures.
written_language  Languages of texts: passages in another language than the text should have, and the rejection for
                  them.
contamination     Contamination: the overlap of a set of records with benchmark files that the user has.
"""
