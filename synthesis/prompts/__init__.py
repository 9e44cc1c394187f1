"""The questions to the teacher, one file for each subject.

The instructions of each end with one worked example, which says that it is one.

additions               Additions to instructions: for hard questions, for tools that no other split has, for packages.
agent_turn              The agent's turn: a chat completion with the offered tools, reasoning included.
chains                  The questions for chains of tools: proposals for a server, and a vote on each chain.
decompositions          The questions for QA instances: written, judged, a value left out; and the need of a tool.
emulated_tool_response  The question for the response of a tool that is known by its document alone.
judges                  The questions to the judges of a trajectory: one for each of six reward axes, in one form.
parameter_completion    The questions for the parameters and for the result of a tool whose document does not say them.
rendering               The form of a question: instructions in the system message, the rest quoted as data.
simulated_user          The questions to the simulated user: the answer when the agent asks back, and the next request.
stateful                The questions for tasks whose tools change a state: tools, state, and conditions on its end.
tasks                   The questions for requests of users: written, continued, put in other words, and scored.
tool_merging            The questions for merging: which tool does the same, and the one tool that joins two.
tool_writing            The questions for the tool of a sub-question: its document, call and code, and siblings of it.
"""
