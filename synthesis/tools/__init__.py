"""Tool documents from anywhere, normalised, and the tools behind them.

backends              Answers to tool calls: from a real MCP server, or from the emulator.
crawled               Crawled MCP servers: documents with `metadata.server_info_crawled`, in two shapes of tool.
documents             Tool documents: each server of a source becomes one `ServerDocument` or a reason why not.
ingestion             Ingestion: each source is read and normalised, and its outcome is written down.
mcp_confinement       The confinement of MCP servers started by a command, and of their `prepare` commands.
mcp_pool              The sessions of real tool servers: lent to one trajectory, restored, replaced when they die.
mcp_servers           Settings by which real tool servers are started or reached, their keys, and their errors.
mcp_session           One running tool server and the connection to it, with the official SDK.
names                 Names of tools: legal for chat templates, unique inside a server, the source's name kept.
openapi               OpenAPI 3.x specifications: each operation is a tool, with its parameters and JSON body.
parameter_completion  Tools with unknown parameters or results: completed by the teacher; without parameters a tool is
                      left out.
rapidapi              RapidAPI documents: lists of the endpoints of one API, and lines `{"tool", "functions"}`.
schema_repair         Keywords of a schema as they are found in the wild, made plain ones of draft 2020-12.
sources               Sources of tool documents: files and folders of any known format, told apart by their contents.
tools_list            Tools as protocols list them: MCP's `tools/list`, and the `tools` of an OpenAI request.
written_documents     Tool documents that a language model wrote, checked before their schemas are used.
yaml_documents        YAML as JSON sees it, by the core schema of version 1.2: keys, `no`, `22:30` and dates are text.
mcp_messages          Listings and answers of a tool server, read entry by entry: one odd entry hides no other.
misplaced_keywords    Parameters and keywords that stand at another place than JSON Schema has for them, put there.
schema_composer       One plain schema of one that is composed: references, `allOf`, forms of a call.
mcp_registry          Listings of MCP registries: the official registry's `/v0/servers`, and Smithery's `/servers`, bare
                      or page by page.
nouns                 Nouns of tools: the kind of thing that a call is about, the call's effect on it, and the arguments
                      that name one.
plain_schemas         Plain schemas: two made one, the values of both (`allOf`) or of either (forms of a call), and
                      contradictions settled.
"""
