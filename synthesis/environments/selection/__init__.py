"""Selection: quotas of environments, splits that share nothing, thresholds, and counts.

quotas      Quotas: the scenario, language, domain and size of each environment, so that shares are exact.
splits      Splits that share nothing: no world, tool or domain of another split occurs in this one.
statistics  Statistics of environments, in the figures that the paper gives of its own.
thresholds  The quality threshold, and a selection from a finished run under another threshold.
"""
