"""A policy behind HTTP, for clients of OpenAI's API and for learners that send token ids.

messages  The messages that are sampled: token ids become text, and text becomes thoughts, content and tool calls.
policy    The policy that is served: a checkpoint, its names, and its limits.
requests  The requests that are answered: the fields of each body, the prompt of a chat, and the errors of a refusal.
server    The server of `astra serve CHECKPOINT`: its paths, the requests that it admits, its start and its end.
service   The service that all requests share: sessions of one decoder, the longest lengths, and messages of token ids.
chats     The replies to chats, in the form of OpenAI's API: whole, or as a stream that adds up to the same.

A request becomes a reply in four steps:
1. `server` refuses web pages, callers without the key and those beyond the queue, and finds the endpoint of the path.
2. `requests` reads the body, in which a wrong field is a 400, and renders a chat with the checkpoint's own template.
3. `service` asks the decoder for each message; `messages` divides its text into thoughts, content and calls.
4. `chats` writes the message whole, or each piece as soon as it is certain; token ids are sent as they are.
"""
