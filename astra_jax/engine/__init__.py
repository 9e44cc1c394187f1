"""The decode engine: token ids in, token ids and their log-probs out. It knows no environment, no tool and no chat.

The story of a token:

 1. A caller awaits `PagedDecoder.generate(ids, sampling, session)`; the session becomes a `Track` of the schedule.
 2. `Schedule.next_read` looks which given tokens lie in pages already, and takes pages for the others.
 3. `XLADevice.read` computes keys and values of the others, layer by layer, and writes them to these pages.
 4. `Schedule.next_sample` gives each session that has read all its tokens a row, next to rows with the same prompt.
 5. `arguments` lays rows out as arrays: pages, last token, seed, slot, temperature, truncation.
 6. `programs.sample_rows` samples up to 16 tokens in every row; the last token of a row goes through all layers.
 7. In each layer the row attends to its pages and to the tokens of this call: on a TPU by `ragged_pages`, on a GPU by
    `triton_pages`, elsewhere by `page_attention` itself.
 8. `sampling` draws the next id from the logits by a key of seed, slot and place: neighbours change no draw.
 9. A row ends with an end token or at its limit; the call ends when few rows go on, so that others take their places.
10. The decoder adds ids and log-probs to the message, and answers the caller if the message has ended (`_take_in`).

Files, in reading order:

    interface       the contract between a decoder and its callers
    sizes           tokens, pages and rows of a decoder, and the shapes that are compiled
    pages           the book of pages: which are free, in use, or kept for a session with the same tokens
    tracks          sessions as the schedule sees them, and the calls that it asks a device for
    schedule        the next call: the sessions whose tokens it reads, or whose messages it goes on with
    decoder         the decoder of this process: callers await messages, one task makes the calls
    device          the pages on the devices, and the calls of programs
    arguments       the arrays of a call, made of rows, and the rows made of its results
    programs        the two compiled programs: read given tokens, sample in several rows
    sampling        one token per row from its logits
    penalties       logits taken from ids that stand in the text already
    kv_pages        keys and values in pages, and where the tokens of a row lie
    rows            rows of one layer over pages of any layout
    page_attention  attention to pages on a CPU, which is the specification, and its parts on a GPU
    triton_pages    the kernel of a GPU
    ragged_pages    the pages and the kernel of a TPU
    shared_device   one device for several hosts, which make all calls together
"""
