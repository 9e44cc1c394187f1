"""Exports: records as rows for other trainers, in a folder with their schema and a data card.

columns       The columns of rows: their types, read from the class of a row, and Parquet files of rows.
data_card     The data card of an export: `README.md` with the YAML head that the Hugging Face hub reads.
export        The export of a record directory: a folder with rows for another trainer, their schema and a data card.
openai_rows   Conversations as rows of `messages` and `tools`, as OpenAI's chat API and its fine-tuning read them.
rl_rows       Environments as rows of RL data for verl, TRL and ASTRA.
tfds_dataset  Records as a data set for `tfds.data_source`, which needs no TensorFlow.
"""
