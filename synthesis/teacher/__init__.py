"""The teacher answers the questions of synthesis.

cache         The SQLite file of a teacher's paid replies by question, and of the sum spent.
config        The models that are asked in each role, and their limits.
endpoint      One endpoint: its client, the calls that it bears at once, and the fields that it refuses.
lenient_json  JSON as language models write it: found in prose, fences and thoughts, its form mended.
openai        A language model behind any OpenAI-compatible endpoint as the teacher.
protocol      The interface of a teacher: typed requests, their replies, and the two ways to fail.
reading       Typed replies from a model's text: read leniently, validated strictly, each mending counted.
scripted      A teacher that answers from queues of replies and failures, for tests.
status_rules  The rule for each HTTP status of an endpoint: its consequence for the question and for the run.
usage         Tokens and money that answers cost, metered per piece of work and per kind of question.
calls         One call: the body that asks a typed question, and the completion that comes back, taken apart.
parroting     Parroted replies: a copy of the prompt's own example or instructions instead of an answer, or no content
              at all.

The embedded teacher stands in `synthesis.procedural`, above both tracks.
"""
