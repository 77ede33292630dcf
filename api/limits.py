"""What a request may hold and a client may take: all numbers of the HTTP side, as docs/api.md tells them."""

# --- bodies -----------------------------------------------------------------------------------------------------------

MAX_BODY = 8 * 2**20
"""Bytes, before and after decompression; the longest prompts of today's models are some 4 MB."""
SMALL_BODY = 64 * 2**10
"""Bytes that are read on the event loop; larger bodies are decompressed, parsed and checked in a thread."""
SMALL_VALUES = 2048
"""Values of a body that is read on the event loop."""
MAX_RATIO = 100
"""Of a body's size to its compressed size, beyond the first `FREE_RATIO` bytes."""
FREE_RATIO = 2**20
BODIES_HELD = 16
"""Bodies of the requests under way, in multiples of the longest body; a small one is taken in any case."""
BODIES_WAITING = 256
"""Large bodies that are there and wait to be parsed."""

# --- JSON -------------------------------------------------------------------------------------------------------------

MAX_DEPTH = 128
"""Levels of nesting; JSON schemas of real tools reach about 30."""
MAX_VALUES = 2**20
"""Numbers, texts and all else: token ids of the longest contexts."""
MAX_TEXTS = 2**17
"""Texts and names."""
MAX_CONTAINERS = 2**16
"""Objects and lists."""
CONTAINER_BYTES, FEW_CONTAINERS = 24, 4096
"""Bytes of the JSON for each of them, beyond the first few: even the shortest takes as much memory as 240 bytes of text."""
MAX_DIGITS = 400
"""Of an integer: Python takes a time for them that grows with their square."""

# --- parameters -------------------------------------------------------------------------------------------------------

MAX_NAME = 512
"""Characters of a model, an id, or a name that is given back."""
MAX_MESSAGES = 4096
"""Messages of a chat, or items of a response's input."""
MAX_PARTS = 1024
"""Parts of a message."""
MAX_CALLS = 128
"""Tool calls of a message."""
MAX_TOOLS = 128
MAX_STOPS = 4
MAX_STOP = 1024
"""Characters of a stop string, or of a text that an adapter puts around messages."""
MAX_BIASES = 1024
MAX_CHOICES = 128
MAX_INPUTS = 2048
"""Texts to embed or to complete in one request, as OpenAI bounds them."""
MAX_ANSWERS = 2048
"""Answers to one request; each costs memory before the first token."""
MAX_VARIABLES = 64
"""Of `chat_template_kwargs`, `include` and other short lists."""
MAX_METADATA = 16

# --- answers ----------------------------------------------------------------------------------------------------------

MAX_MESSAGE = 2000
"""Characters of an error's message, which may quote the request."""
MAX_PARAM = 200

# --- responses --------------------------------------------------------------------------------------------------------

MAX_RESPONSES = 1000
"""Responses that later ones may go on from."""
MAX_RESPONSES_BYTES = 64 * 2**20
MAX_BACKGROUND = 256
"""Responses that are made while nobody waits for them."""
MAX_BACKGROUND_BYTES = 64 * 2**20
"""Of their requests."""
MAX_BACKGROUND_S = 6 * 3600.0

# --- connections ------------------------------------------------------------------------------------------------------

MAX_CONNECTIONS = 1024
MAX_CONNECTIONS_OF_ONE = 512
"""From one address: a proxy, or a benchmark."""
IDLE_S = 75.0
"""Without a request."""
HEADER_S = 20.0
"""From the first byte of a request to the end of its headers."""
MAX_HEADERS = 64 * 2**10
"""Bytes of a request's headers, where they don't come at once."""
MAX_AHEAD = 2 * 2**20
"""Bytes of requests that came before the one before them was answered."""
BODY_S = 30.0
"""For a body, and a second more for each `BODY_RATE` bytes of it that came."""
BODY_RATE = 16 * 2**10
STALL_S = 60.0
"""A reader that takes nothing for so long is given up: it may hold a place that others wait for."""
CLOSE_S = 1.0
"""For the last bytes of what is done, when the node stops."""
