"""What a track would cost with a language model as its teacher: a small metered run, scaled up."""
