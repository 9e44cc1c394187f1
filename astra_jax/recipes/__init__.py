"""Whole recipes: stages of synthesis, training and evaluation in one run."""
