"""What questions are about: knowledge that goes in, and a main question taken apart into sub-questions.

knowledge       texts, tables and domains, read from files
decomposition   the dependency graph τ of a QA instance
"""
