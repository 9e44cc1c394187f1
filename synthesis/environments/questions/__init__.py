"""Questions: QA instances with their decompositions, scored, and the documents of their tools.

drafts          Drafts: questions that are written and scored before any tool is made.
qa_instances    QA instances: a main question with its decomposition, its structure checked by rule.
refusals        Refusal environments: a needed tool is withheld, or the question leaves a needed value out.
tool_documents  Tool documents of sub-questions: written by the teacher, and for a share of them scaled.
"""
