"""Options of all gRPC channels and servers of a node, and limits on messages, calls and connections."""

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""Maximum bytes of a frame: a prefill chunk of 2,048 tokens of a 16k-wide f32 model is 128 MB.

gRPC's default is 4 MB.
"""

MAX_CONTROL_BYTES = 8 * 1024 * 1024
"""Maximum bytes of any other message: a prompt of a million tokens takes 4 MB, a chunk of a file 1 MB."""
MAX_REQUEST_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a request to generate: it may have pictures."""
MAX_STREAMS = 1024
"""Concurrent calls per connection; a gateway has one for each request to a driver. Further calls wait at the caller."""
MAX_CALLS = 8 * MAX_STREAMS
"""Concurrent calls over all connections; further ones are refused."""

MAX_HEADERS = 64
"""Maximum headers of a call; a node sends some ten. gRPC's own limit (`grpc.max_metadata_size`) fails a call without
freeing its headers, which take a hundred times the bytes that a caller sends for them.
"""

MAX_CONNECTIONS = 1024
"""Connections to the server; half of the process's descriptors if those are fewer.

A node opens some four to another.
"""
MAX_CONNECTIONS_OF_ADDRESS = 128
"""Connections from one address; several nodes may share a machine."""

Options = tuple[tuple[str, int | str], ...]
_COMMON: Options = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A peer that lost power sends no reset: ping, give up after 5 s.
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Reconnect to a restarted node within a second; gRPC's default backoff goes up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Two nodes must never share a port silently.
    ("grpc.so_reuseport", 0),
    # Proxies set in the environment are for the internet, not for peers.
    ("grpc.enable_http_proxy", 0),
)

CHANNEL_OPTIONS: Options = (
    *_COMMON,
    ("grpc.max_receive_message_length", MAX_CONTROL_BYTES),  # answers are never as large as a frame
    ("grpc.keepalive_time_ms", 5_000),
)
"""Of channels for frames, requests and files."""

CONTROL_OPTIONS: Options = (
    *_COMMON,
    ("grpc.max_receive_message_length", MAX_CONTROL_BYTES),
    ("grpc.keepalive_time_ms", 60_000),
)
"""Of channels for heartbeats, which notice a lost peer before any ping does; and each ping wakes both processes."""

SERVER_OPTIONS: Options = (
    *_COMMON,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),  # membership notices the loss of a node; this one ends what still serves it
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),  # a node's next call reconnects by itself
)
