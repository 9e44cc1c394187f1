"""Records for other people's trainers: one folder with the rows, their schema and a data card.

row_schema     the types of a row's columns, once, from its class
openai_rows    messages and tools, as OpenAI's API and fine-tuning read them
astra_rows     the columns of ASTRA's published environments, both ways
sandbox_tools  what the sandbox client needs to run a tool, and what a reward needs to count
verl_rows      verl's RL rows
trl_rows       TRL's RL rows
parquet_rows   any of these in a Parquet file
tfds_dataset   trajectories and environments for `tfds.data_source`
data_card      README.md of an export, with the head that the Hugging Face hub reads
export         the folder whole
graphs         tool graphs and dependency graphs, as one GraphML file
"""
