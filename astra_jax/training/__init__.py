"""What SFT and RL share around their steps: one training run.

config, parts           the keys that both have; what a run works with
run                     restore, step after step, save, end well
optimizer, accumulation, not_finite   AdamW; a batch in parts; steps that are not applied
packing                 several samples in one row
metrics, wandb_run      one line per step
run_record, run_lock, termination   what a run was begun with; one at a time; signals
"""
