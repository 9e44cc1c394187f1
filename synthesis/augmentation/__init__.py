"""Oracle-preserving augmentation: of a proven environment others with the same gold answers, without a teacher.

unreliable_tools      some replies are bad, and a retry mends them
indirect_wording      the question in a lay person's words
derived_argument      the question has a part of a name, and a tool that tells the whole
more_tools            further distractors, from other environments
variants              one variant, proven as a new environment is
augment               a record directory with variants beside their sources
"""
