"""Limits of the HTTP side, as documented in docs/api.md."""

# --- bodies -----------------------------------------------------------------------------------------------------------

MAX_BODY = 32 * 2**20
"""Maximum bytes of a body, before and after decompression: the largest picture in base64, or some more of usual sizes. The longest
prompts of today's models are some 4 MB.
"""
SMALL_BODY = 64 * 2**10
"""Maximum bytes of a body read on the event loop; larger ones are decompressed, parsed and checked in a thread."""
SMALL_VALUES = 2048
"""Maximum JSON values of a body that is read on the event loop."""
MAX_RATIO = 100
"""Maximum ratio of a body's size to its compressed size, beyond the first `FREE_RATIO` bytes."""
FREE_RATIO = 2**20
BODIES_HELD = 8
"""Maximum total of the bodies in memory, in multiples of the longest body; a small body is accepted in any case."""
BODIES_HELD_OF_ONE = 4
"""The same, of one client."""
BODIES_WAITING = 256
"""Maximum number of large bodies of one client that wait to be parsed."""

# --- JSON -------------------------------------------------------------------------------------------------------------

MAX_DEPTH = 128
"""Maximum levels of nesting; JSON schemas of real tools reach about 30."""
MAX_VALUES = 2**20
"""Maximum values of all types; enough for the token ids of the longest contexts."""
MAX_TEXTS = 2**17
"""Maximum strings, including the names in objects."""
MAX_CONTAINERS = 2**16
"""Maximum objects and lists."""
CONTAINER_BYTES, FEW_CONTAINERS = 24, 4096
"""Bytes of JSON needed for each object or list, beyond the first FEW_CONTAINERS: even an empty one takes as much memory
as 240 bytes of text.
"""
MAX_DIGITS = 400
"""Maximum digits of an integer: Python's time to parse them grows with their square."""

# --- parameters -------------------------------------------------------------------------------------------------------

# Names have at most MAX_NAME_CHARS of node.core.limits, like those that nodes accept from each other.
MAX_MESSAGES = 4096
"""Maximum messages of a chat, or items of a response's input."""
MAX_PARTS = 1024
"""Maximum content parts of a message."""
MAX_PICTURES = 32
MAX_PIXEL_BYTES = 56 * 2**20
"""Maximum bytes of a request's pictures in the sizes in which the model takes them: they go to the driver in one message, of
MAX_REQUEST_BYTES in node/rpc. The largest take some 7 MB.
"""
MAX_PICTURE_BYTES = 20 * 2**20
"""Maximum bytes of one, as it is sent."""
MAX_CALLS = 128
"""Maximum tool calls of a message."""
MAX_TOOLS = 128
MAX_STOP_TOKENS = 128
MAX_STOPS = 16
"""Maximum stop strings, of which OpenAI takes 4: each is compared with every character of the answer."""
MAX_STOP_CHARS = 1024
"""Maximum characters of a stop string, or of a text in an adapter."""
MAX_BIASES = 1024
MAX_ALLOWED_TOKENS = 16_384
MAX_CHOICES = 128
"""Maximum `n` or `best_of`: answers to one prompt."""
MAX_INPUTS = 2048
"""Maximum texts to embed or to complete in one request, the same as OpenAI's."""
MAX_ANSWERS = 2048
"""Maximum answers to all prompts of one request; each takes memory before its first token."""
MAX_VARIABLES = 64
"""Maximum entries of `chat_template_kwargs`, `include` and other short lists."""
MAX_METADATA = 16
MAX_COUNTED = 2**20
"""Maximum tokens that are counted or listed, also for a model with a shorter context: a longer list burdens the node."""

# --- answers ----------------------------------------------------------------------------------------------------------

MAX_MESSAGE_CHARS = 2000
"""Maximum characters of an error message, which may quote the request."""
MAX_PARAM_CHARS = 200

# --- responses --------------------------------------------------------------------------------------------------------

MAX_RESPONSES = 1000
"""Maximum number of stored responses, which later ones may continue."""
MAX_RESPONSES_BYTES = 64 * 2**20
MAX_BACKGROUND = 256
"""Maximum number of background responses in progress; one client may have half of it, and of their bytes."""
MAX_BACKGROUND_BYTES = 64 * 2**20
"""Maximum total bytes of their requests, and of the conversations that these continue."""
MAX_BACKGROUND_S = 6 * 3600.0
"""Maximum seconds of each."""
MAX_EVENTS_BYTES = 64 * 2**20
"""Maximum total bytes of the events that are kept of those that are streamed."""

# --- connections ------------------------------------------------------------------------------------------------------

MAX_CONNECTIONS = 1024
MAX_CONNECTIONS_OF_ONE = 512
"""Maximum connections from one address, which may be a proxy or a benchmark."""
KEPT_CONNECTIONS = 16
"""Further connections, which get answers at `/health` only."""
IDLE_S = 75.0
"""Seconds that a connection may stay open without a request."""
HEADER_S = 20.0
"""Seconds from the first byte of a request to the end of its headers."""
MAX_HEADERS = 64 * 2**10
"""Maximum bytes of a request's headers if they arrive in parts."""
MAX_WAITING = 8
"""Maximum pipelined requests that wait for the answer to the one before them."""
MAX_WAITING_BODIES = 16 * 2**10
"""Maximum bytes of their bodies. aiohttp stops reading at 512 KiB of a body, or at 16,384 chunks."""
FOLLOWERS, FOLLOWERS_OF_ONE = 32, 8
"""Maximum requests that follow a log, and those of one client."""
BODY_S = 30.0
"""Seconds allowed for a body, plus one for each `BODY_RATE` bytes of it that were received."""
BODY_RATE = 16 * 2**10
STALL_S = 60.0
"""Seconds after which a client that reads less than READ_RATE is disconnected: it may hold a place that others wait for."""
READ_RATE = 2**10
"""Bytes a second, of a client for which bytes wait: a fifth of what a slow answer's events have."""
CLOSE_S = 1.0
"""Seconds allowed for the last bytes of finished answers when the node stops."""
