"""The decode engine: token ids in, token ids and their log-probs out.

It knows no environment, no tool and no chat. The story of a token:

 1. A caller awaits `PagedDecoder.generate(ids, sampling, session)`; the session becomes a `Track` of the schedule.
 2. `Schedule.next_read` looks which given tokens lie in pages already, and takes pages for the others.
 3. `XLADevice.read` computes keys and values of the others, layer by layer, and writes them to these pages.
 4. `Schedule.next_sample` gives each session that has read all its tokens a row.
 5. `device` lays rows out as arrays: pages, last token, seed, slot, temperature, truncation.
 6. `programs.sample_rows` samples up to 16 tokens in every row; the last token of a row goes through all layers.
 7. In each layer the row attends to its pages and to the tokens of this call: on a TPU by `ragged_pages`, on a GPU by
    `triton_pages`, elsewhere by `page_attention` itself.
 8. `sampling` draws the next id from the logits by a key of seed, slot and place: neighbours change no draw.
 9. A row ends with an end token or at its limit; the call ends when few rows go on, so that others take their places.
10. The decoder adds ids and log-probs to the message, and answers the caller if the message has ended (`_take_in`).

Files, in reading order:

interface       The contract between a decoder and its callers: token ids in, token ids and their log-probs out.
sizes           Tokens, pages and rows of a decoder: every number that decides which programs are compiled.
pages           The book of pages: which are free, which are in use, and which are kept for reuse.
tracks          Sessions as the schedule sees them, and the calls that it asks a device for.
schedule        The schedule of a decoder: it chooses the sessions of the next call, and their pages.
decoder         The decoder of this process: callers await messages, and one task makes all calls.
device          The pages on the devices, and the calls of compiled programs that a schedule asks for.
programs        The two compiled programs: read given tokens, and sample in several rows.
sampling        One token per slot, drawn from its logits.
kv_pages        Keys and values in pages, pieces of memory of a fixed size, which sequences may share.
page_attention  Attention of rows to pages: on a CPU by copies, which is the specification, on a GPU by a kernel.
triton_pages    The kernel of a GPU: attention of one new token per row to pages where they lie.
ragged_pages    The pages and the kernel of a TPU: JAX's `ragged_paged_attention`.
shared_device   One device for several hosts, which make all calls together.
"""
