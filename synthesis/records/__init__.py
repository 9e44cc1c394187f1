"""Records: the data that the packages hand to one another, defined once.

    ServerDocument ─ ToolDocument                tools that can be called
    Trajectory ─ Task, Message ─ ToolCall        a conversation kept as data, with its seven reward axes
    Environment ─ SubQuestion, EnvironmentTool   a question whose sub-answers are proven by running Python tools

certificates   The certificate of a set of environments: figures of policies that must not succeed, and one that must.
conversations  Trajectories: tasks, the messages of a conversation, and the seven reward axes.
environments   Environments: a question whose sub-answers are proven by running Python tools, and the gold episode.
tools          Tool documents and servers, and the form that all records have.
database       The program behind a tool whose state is a database; it runs in the sandbox, in the tool's process.
"""

from synthesis.records.certificates import ATTACKS, MEANING, AttackFigures, BlindAccuracy, Certificate
from synthesis.records.conversations import (
    ArgumentBinding,
    Chain,
    Expectation,
    FollowUp,
    InjectedFailure,
    Message,
    Persona,
    RejectedRecord,
    RejectedTrajectory,
    RewardAxes,
    Task,
    TaskScores,
    ToolCall,
    Trajectory,
)
from synthesis.records.environments import (
    DATABASE_PROGRAM,
    LOOKUP_VERBS,
    Composition,
    Difficulty,
    Environment,
    EnvironmentTool,
    IrrelevantTool,
    NeededPackage,
    Operation,
    QualityScore,
    RejectedEnvironment,
    Scenario,
    SimilarityBand,
    StateCondition,
    SubQuestion,
    answer_message,
    reasoning_before,
)
from synthesis.records.tools import (
    LEGAL_TOOL_NAME,
    SCHEMA_VERSION,
    KeptRecord,
    Language,
    Provenance,
    Record,
    ServerDocument,
    ToolDocument,
    record_id,
)
from synthesis.run.json_values import JsonObject, JsonValue, canonical_json
