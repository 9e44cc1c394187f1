"""One training run: everything that SFT and RL share around their steps.

config, parts           the keys of both; mesh, model and tokenizer, checked
run                     restore, step after step, save, end well
optimizer, accumulation, not_finite   AdamW; the gradients of a batch in parts; steps that are not applied
packing                 several samples in one row
metrics, wandb_run      one line per step
run_record, termination   what refuses a resume; signals
"""
