"""Weights and training states on disk.

checkpoint         Checkpoints of a training run: Orbax arrays beside a manifest that is written last.
policy             A policy: a model's shape, its weights and its tokenizer, as one checkpoint folder.
provenance         The provenance of a policy: `provenance.json` names the base model and every stage of training.
hf                 HuggingFace folders of every family, both ways, through one table; sharded safetensors, one tensor at
                   a time.
convert            Checkpoints to and from HuggingFace, a layer or some rows at a time: memory does not grow with the
                   model.
generation_config  End tokens and sampling defaults of a HuggingFace model (`generation_config.json`).
model_card         The model card of an exported policy: its provenance, and the figures of its run.
foreign            A foreign checkpoint brought to Qwen3's chat format: its control tokens, their embeddings, and the
                   chat template.
gguf_file          A GGUF file made a HuggingFace folder: weights dequantised, and config, tokenizer and template from
                   its metadata.
"""
