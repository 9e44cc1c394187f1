"""Weights and training states on disk.

checkpoint               Orbax arrays beside a manifest that makes them whole
policy, provenance       a model with its tokenizer as one folder; its base model and stages of training
hf, convert              HuggingFace's layout, through one two-way table, a piece at a time
generation_config, model_card   sampling settings and README of an export
"""
