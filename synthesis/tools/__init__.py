"""Tool documents from anywhere, normalised, and the tools behind them.

sources                      files and folders, told apart by what they hold
crawled, openapi, rapidapi, tools_list, python_functions, yaml_documents   one format each
documents, names, schema_repair, near_duplicate_servers    one form for all, and what is kept
written_documents            what a language model says of a tool that it makes up: used as it is, or not at all
mcp_servers, mcp_credentials, mcp_session                  real servers: named, given their keys, called
mcp_pool, mcp_group                                        lent to trajectories, several together
frozen_clock, demo_repositories                            what makes two of them answer the same every time
backends                     who answers a call: a real server or the emulator
ingestion                    all of it: `astra synthesize tools`
"""
