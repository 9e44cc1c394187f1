"""The questions to the teacher, one file each.

The instructions of each end with one worked example, which says that it is one.

agent_turn                   The agent's turn: a chat completion with the offered tools, reasoning included.
augmentation                 The question for a request in other words, with more constraints, or by another speaker.
chain_proposal               The question which tools of a server are used one after another, and for what.
chain_vote                   The question whether a chain of tools makes sense as a whole.
correction                   A question that is put again: the rejected answer and the reason follow it as messages.
decomposition_quality        The question whether a decomposition is any good.
emulated_tool_response       The question what a tool that is known by its document alone would return.
ending                       The question to the judge of an episode's message: whether it refuses, or asks back.
follow_up_writing            The question what the same user would ask for next, once the first requests are done.
hard_wording                 Additions to instructions for hard questions, whose words must not lead to the tool.
judges                       The questions to the judges of a trajectory: one for each of six reward axes, in one form.
packages                     Additions to instructions about the packages that a tool's code may import.
parameter_completion         The question which parameters a tool takes whose document does not say.
parameter_omission           The question how a task reads when it leaves out what it is about.
qa_instance                  The question that makes a QA instance from knowledge.
rendering                    The form of a question: instructions in the system message, the rest quoted as data.
sibling_tools                The question for siblings of a tool, which take its parameters and answer otherwise.
simulated_user               The question what the user answers when the agent asks back.
state_conditions             The question for a task's conditions on the last state, which stays hidden.
stateful_task_writing        The question for a task whose tools change the episode's state, with tools and state.
stateful_tools               The questions for further tools on a task's state, and for optional parameters.
task_scoring                 The question how good a request is as training material.
task_writing                 The question what a user would say to have a chain of tools called.
tool_call_writing            The question how a tool is called to answer a sub-question.
tool_document_scaling        The question how a tool's document is made as complex as those of real services.
tool_document_writing        The question what tool would answer a sub-question: its document.
tool_implementation_writing  The question how a tool is implemented so that its call gives the sub-answer.
tool_merging                 The questions whether two tools do the same, and how to join two that do.
tool_necessity               The question whether a last, computed sub-question needs a tool.
unseen_tools                 Additions to instructions for tools that no other split may have.
user_continuation            The question what the user says when the agent has answered and there is more to ask for.
"""
